/* ask.h - names, times and numbers for people, and JSON. */
#ifndef NVLLM_CLIENT_CTL_ASK_H
#define NVLLM_CLIENT_CTL_ASK_H

#include <jansson.h>
#include <stdio.h>

#include "client/ctl/ctl.h"

/* The user's name, or the number if there is none. */
const char *ctl_user_name(char *out, size_t n, uint32_t uid);

/* 0 where the whole is 0. */
double ctl_percent(uint64_t part, uint64_t whole);

/* "3 ms", "12.3 s", "5 min", "2 h", "3 d"; needs 16 bytes. */
const char *ctl_duration(char *out, size_t n, uint64_t us);

/* A count as JSON, up to INT64_MAX. */
json_t *ctl_json_count(uint64_t n);

/* The daemon's number of a request; ends the program for anything else. */
uint64_t ctl_request_number(const struct ctl *ctl, const char *text);

#endif
