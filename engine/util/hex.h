/* hex.h - hexadecimal digits. */
#ifndef NVLLM_ENGINE_UTIL_HEX_H
#define NVLLM_ENGINE_UTIL_HEX_H

/* The value of a digit of either case, or -1. */
static inline int hex_digit(unsigned char c)
{
    const unsigned char lower = c | 0x20;

    if (c >= '0' && c <= '9')
        return c - '0';
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

#endif
