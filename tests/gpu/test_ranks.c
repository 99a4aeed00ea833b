/* test_ranks.c - ranks wait for each other: what one has written the others see behind the barrier,
 * and a rank that does not come ends the wait. Here all ranks are streams of one device.
 *
 *   gpu_test_ranks lost   the second part, whose error ends the process's use of the device */
#include <string.h>

#include "tests/gpu/gpu_rig.h"
#include "tests/unit/run_suite.h"

enum { RANKS = 4, ROUNDS = 500, WORDS = 4096 };

/* A barrier of so many ranks in fresh memory. */
static void make_barrier(struct peer_barrier b[RANKS])
{
    for (int i = 0; i < RANKS; i++) {
        b[i].n_ranks = RANKS;
        b[i].me = i;
        b[i].last = device_new(sizeof(uint32_t));
        b[0].arrived[i] = device_new(MAX_RANKS * sizeof(uint32_t));
    }
    for (int i = 1; i < RANKS; i++)
        memcpy(b[i].arrived, b[0].arrived, sizeof(b[0].arrived));
}

/* Each rank writes the round's number and, behind the barrier, copies what its neighbour wrote;
 * two buffers by turns, as the all-reduce has them. */
TEST(what_ranks_wrote_is_seen_behind_the_barrier)
{
    struct peer_barrier barriers[RANKS] = {{0}};
    struct launch l[RANKS];
    char *written[RANKS][2];
    uint8_t *seen[RANKS], *host = host_new(ROUNDS, WORDS);

    make_barrier(barriers);
    for (int i = 0; i < RANKS; i++) {
        l[i] = (struct launch){.n_sms = device.launch.n_sms};
        cuda_must(cudaStreamCreateWithFlags(&l[i].stream, cudaStreamNonBlocking));
        written[i][0] = device_new(WORDS);
        written[i][1] = device_new(WORDS);
        seen[i] = device_new((size_t)ROUNDS * WORDS);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < RANKS; k++) {
            const int i = (k + round) % RANKS,
                      next = (i + 1) % RANKS; /* another is last each time */

            cuda_must(
                cudaMemsetAsync(written[i][round % 2], (round + i) % 251, WORDS, l[i].stream));
            cuda_must(peer_barrier(&l[i], &barriers[i]));
            cuda_must(cudaMemcpyAsync(seen[i] + (size_t)round * WORDS, written[next][round % 2],
                                      WORDS, cudaMemcpyDeviceToDevice, l[i].stream));
        }
    for (int i = 0; i < RANKS; i++) {
        cuda_must(cudaStreamSynchronize(l[i].stream));
        cuda_must(cudaMemcpy(host, seen[i], (size_t)ROUNDS * WORDS, cudaMemcpyDeviceToHost));
        for (int round = 0; round < ROUNDS; round++)
            for (int k = 0; k < WORDS; k++)
                ck_assert_int_eq(host[round * WORDS + k], (round + (i + 1) % RANKS) % 251);
        cuda_must(cudaStreamDestroy(l[i].stream));
    }
}
END_TEST

/* A float whose bytes are all the same, so that it can be set by the device. */
static float float_of(int byte)
{
    const uint32_t bits = (uint32_t)byte * 0x01010101u;
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static int byte_of(int round, int rank)
{
    return 0x3c + (round + rank) % 4; /* 0.01 to 0.75 */
}

/* Norms that exchange parts by themselves: each adds what all have written in its round, and not
 * what they wrote before. */
TEST(norms_exchange_what_they_add)
{
    enum { ROWS = 7, DIM = 1024, BYTES = ROWS * DIM * 4 };
    const size_t inbox_bytes = (size_t)RANKS * NORM_PUSHED_ROWS * DIM * 4;
    struct launch l[RANKS];
    struct norm norm[RANKS];
    char *parts[RANKS][2];
    float *inbox[2][RANKS];
    uint16_t *w = device_new(DIM * 2);
    float expected = 0.0f, *x = host_new(ROWS * DIM, sizeof(float));

    for (int i = 0; i < RANKS; i++) {
        l[i] = (struct launch){.n_sms = device.launch.n_sms};
        cuda_must(cudaStreamCreateWithFlags(&l[i].stream, cudaStreamNonBlocking));
        for (int turn = 0; turn < 2; turn++) {
            parts[i][turn] = device_new(BYTES);
            inbox[turn][i] = device_new(inbox_bytes);
            device_fill(inbox[turn][i], 0xff, inbox_bytes);
        }
        norm[i] = (struct norm){.y = {device_new(BYTES / 2)},
                                .x = device_new(BYTES),
                                .w = w,
                                .n_rows = ROWS,
                                .dim = DIM,
                                .eps = 1e-6f,
                                .n_parts = RANKS,
                                .me = i};
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < RANKS; k++) {
            const int i = (k + round) % RANKS;

            norm[i].parts[i] = parts[i][round % 2];
            memcpy(norm[i].inbox, inbox[round % 2], sizeof(inbox[0]));
            cuda_must(cudaMemsetAsync(parts[i][round % 2], byte_of(round, i), BYTES, l[i].stream));
            cuda_must(rms_norm(&l[i], &norm[i]));
        }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < RANKS; i++)
            expected += float_of(byte_of(round, i));
    for (int i = 0; i < RANKS; i++) {
        cuda_must(cudaStreamSynchronize(l[i].stream));
        cuda_must(cudaMemcpy(x, norm[i].x, BYTES, cudaMemcpyDeviceToHost));
        for (int k = 0; k < ROWS * DIM; k++)
            ck_assert(x[k] == expected);
        cuda_must(cudaStreamDestroy(l[i].stream));
    }
}
END_TEST

/* Prints how long one of four ranks waited for the others, which never came. A fault has to be
 * found in FOUND_SECONDS: a device that traps takes some by itself. */
static int lost(void)
{
    enum { FOUND_SECONDS = 15 };
    struct peer_barrier barriers[RANKS] = {{0}};
    cudaError_t code;
    double begin;

    device_set_up();
    make_barrier(barriers);
    cuda_must(cudaDeviceSynchronize());
    begin = monotonic_seconds();
    cuda_must(peer_barrier(&device.launch, &barriers[0]));
    code = cudaStreamSynchronize(device.launch.stream);
    printf("lost: %s after %.1f s\n", cudaGetErrorName(code), monotonic_seconds() - begin);
    return code == cudaSuccess || monotonic_seconds() - begin > FOUND_SECONDS;
}

int main(int argc, char **argv)
{
    ranks_may_share_devices();
    if (argc > 1 && strcmp(argv[1], "lost") == 0)
        return lost();
    return run_tests_here("ranks", device_set_up, device_tear_down);
}
