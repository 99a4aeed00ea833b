/* test_rendezvous.c - the file through which processes of a cluster meet: whole, of one user, once.
 */
#include "cuda/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

static char path[128], id[RENDEZVOUS_BYTES], got[RENDEZVOUS_BYTES];
static struct err e;

static void setup(void)
{
    make_dir();
    snprintf(path, sizeof(path), "%s/id", dir);
    for (int i = 0; i < RENDEZVOUS_BYTES; i++)
        id[i] = (char)(i * 7);
}

static void write_id(void)
{
    ck_assert_msg(rendezvous_write(path, id, &e) == 0, "%s", e.text);
}

static void ck_refused(int code, const char *word)
{
    memset(got, 0x55, sizeof(got));
    ck_assert_int_eq(rendezvous_read(got, path, &e), code);
    ck_assert_msg(strstr(e.text, path) && strstr(e.text, word), "%s", e.text);
    for (int i = 0; i < RENDEZVOUS_BYTES; i++)
        ck_assert_int_eq(got[i], 0x55);
}

/* What has been written is read, by its owner alone; nothing is left beside it. */
TEST(id_comes_back)
{
    struct stat st;

    write_id();
    ck_assert_msg(rendezvous_read(got, path, &e) == 0, "%s", e.text);
    ck_assert_mem_eq(got, id, sizeof(id));
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    rendezvous_remove(path);
    ck_assert_int_eq(rmdir(dir), 0);
    make_dir(); /* for tear_down */
}

/* Before it is there and after it was removed a reader may try again. */
TEST(missing_file_is_no_other_error)
{
    ck_refused(-ENOENT, "No such file");
    write_id();
    rendezvous_remove(path);
    ck_refused(-ENOENT, "No such file");
}

/* The file of an earlier start is replaced, whatever it holds. */
TEST(file_is_replaced)
{
    const int fd = open(path, O_CREAT | O_WRONLY, 0600);

    ck_assert_int_eq(write(fd, "old", 3), 3);
    close(fd);
    write_id();
    ck_assert_int_eq(rendezvous_read(got, path, &e), 0);
    id[3]++;
    write_id();
    ck_assert_int_eq(rendezvous_read(got, path, &e), 0);
    ck_assert_mem_eq(got, id, sizeof(id));
}

/* Cut short, longer, or of another kind: it is refused by its name. */
TEST(other_files_are_refused)
{
    int fd;

    write_id();
    ck_assert_int_eq(truncate(path, 100), 0);
    ck_refused(-EINVAL, "not written by nvllmd");
    write_id();
    ck_assert_int_eq(truncate(path, 500), 0);
    ck_refused(-EINVAL, "not written by nvllmd");
    write_id();
    fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "x", 1, 0), 1);
    close(fd);
    ck_refused(-EINVAL, "not written by nvllmd");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_refused(-EINVAL, "regular file");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    ck_refused(-EINVAL, "symbolic link");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_refused(-EINVAL, "regular file");
}

/* An id that others may have written decides where this process connects to. */
TEST(file_that_others_can_write_is_refused)
{
    write_id();
    ck_assert_int_eq(chmod(path, 0622), 0);
    ck_refused(-EPERM, "one user");
}

/* Where it cannot be written, the error says where. */
TEST(missing_folder_is_told)
{
    snprintf(path, sizeof(path), "%s/none/id", dir);
    ck_assert_int_eq(rendezvous_write(path, id, &e), -ENOENT);
    ck_assert_msg(strstr(e.text, path), "%s", e.text);
}

RUN_TESTS("rendezvous", setup, remove_dir)
