/* bench_daemon.c - what nvllmd itself costs: a backend that answers at once takes the model's
 * place.
 *
 * usage: bench_daemon [--lax] [--nvllmd PATH] [--module PATH] [--model FOLDER] COMMAND [NUMBER…]
 *
 *   throughput [CONNECTIONS] [STREAMS] [TOKENS]   64, 1024, 3000: tokens a second of all streams
 *   latency [TOKENS] [STEP-US] [IDLE]             5000, 1000, 1000: what is added to each of one
 *                                                 stream among idle connections, beside what the
 *                                                 machine takes for its wake-ups
 *
 * Each prints what it measured; the exit status is 1 where a bar is missed, which --lax forgives:
 * on a machine that does other things as well, or with sanitizers, only wrong answers count. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_daemon.h"

static int number(int argc, char **argv, int i, int fallback)
{
    return i < argc ? atoi(argv[i]) : fallback;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_daemon [--lax] [--nvllmd PATH] [--module PATH] [--model FOLDER]\n"
                    "                    throughput|latency [NUMBER…]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option long_options[] = {{"lax", no_argument, NULL, 'x'},
                                                 {"nvllmd", required_argument, NULL, 'd'},
                                                 {"module", required_argument, NULL, 'b'},
                                                 {"model", required_argument, NULL, 'm'},
                                                 {NULL, 0, NULL, 0}};
    struct bench_setup s = {.nvllmd = BENCH_NVLLMD,
                            .module = BENCH_MODULE,
                            .model = TEST_MODEL_DIR};
    const char *command;
    bool good;
    int opt;

    while ((opt = getopt_long(argc, argv, "+", long_options, NULL)) != -1) {
        switch (opt) {
        case 'x':
            s.lax = true;
            break;
        case 'd':
            s.nvllmd = optarg;
            break;
        case 'b':
            s.module = optarg;
            break;
        case 'm':
            s.model = optarg;
            break;
        default:
            return usage();
        }
    }
    if (optind == argc)
        return usage();
    command = argv[optind++];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(command, "throughput") == 0)
        good = bench_throughput(&s, number(argc, argv, optind, 64),
                                number(argc, argv, optind + 1, 1024),
                                number(argc, argv, optind + 2, 3000));
    else if (strcmp(command, "latency") == 0)
        good = bench_latency(&s, number(argc, argv, optind, 5000),
                             number(argc, argv, optind + 1, 1000),
                             number(argc, argv, optind + 2, 1000));
    else
        return usage();
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
