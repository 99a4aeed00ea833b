/* err.h - the one line that tells a person what went wrong, beside a negative errno.
 *
 * A function that can fail for reasons a person must read takes a `struct err *` as its last
 * parameter, fills it on failure only, and returns a negative errno; callers hand both up
 * unchanged. The text names the file or field and, where there is one, the way out. */
#ifndef NVLLM_ENGINE_UTIL_ERR_H
#define NVLLM_ENGINE_UTIL_ERR_H

struct err {
    char text[512]; /* NUL-terminated; longer texts are cut */
};

/* Sets the text and returns code, so that `return err_set(e, -EINVAL, "…")` reads as one thing.
 * e may be NULL: then only the code is handed up. Control characters of arguments are kept out of
 * terminals and logs by being written as '?'. */
__attribute__((format(printf, 3, 4))) int err_set(struct err *e, int code, const char *fmt, ...);

#endif
