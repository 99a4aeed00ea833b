/* program.c - see program.h. */
#include "proto/program.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* The Levenshtein distance, row by row. */
int program_distance(const char *a, const char *b)
{
    int row[PROGRAM_LONGEST_WORD + 1];
    int n_a = (int)strnlen(a, PROGRAM_FAR), n_b = (int)strnlen(b, PROGRAM_FAR);

    if (n_a > PROGRAM_LONGEST_WORD || n_b > PROGRAM_LONGEST_WORD)
        return PROGRAM_FAR;
    for (int j = 0; j <= n_b; j++)
        row[j] = j;
    for (int i = 1; i <= n_a; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n_b];
}

int program_next_number(int64_t *number, const char *text, size_t n, size_t *at)
{
    const int64_t enough = INT64_C(1) << 31;
    int64_t value = 0;
    size_t i = *at;

    while (i < n && memchr(" \t\r\n,", text[i], 5))
        i++;
    *at = i;
    if (i == n)
        return PROGRAM_END;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        value = value >= enough ? value : value * 10 + (text[i] - '0');
    if (i == *at)
        return PROGRAM_NONE;
    *at = i;
    *number = value;
    return PROGRAM_NUMBER;
}

/* A quote ends the quoted part, stands escaped, and begins the next part. */
const char *program_quote(char *out, size_t n, const char *text)
{
    size_t at = 0;

    out[at++] = '\'';
    for (; *text; text++) {
        const char *piece = *text == '\'' ? "'\\''" : text;
        size_t length = *text == '\'' ? 4 : 1;

        if (at + length + 2 > n)
            break;
        memcpy(out + at, piece, length);
        at += length;
    }
    out[at++] = '\'';
    out[at] = '\0';
    return out;
}

bool program_has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

void program_hold_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}
