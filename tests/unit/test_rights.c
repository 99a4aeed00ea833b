/* test_rights.c - each operation of the schema has its row, and who is who. */
#include "daemon/server_private.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

#define FIRST_OP 2 /* field 1 is the id */

/* Every operation of ClientFrame has exactly one row, by the name that the schema gives it. */
TEST(each_operation_has_one_row)
{
    const ProtobufCMessageDescriptor *d = &nvllm__v1__client_frame__descriptor;
    unsigned n = 0;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        const struct operation *row = operation_of((Nvllm__V1__ClientFrame__OpCase)(int)f->id);

        if (strcmp(f->name, "id") == 0)
            continue;
        ck_assert_msg(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF, "%s is no operation", f->name);
        ck_assert_msg(row != NULL, "%s has no row", f->name);
        ck_assert_str_eq(row->name, f->name);
        n++;
    }
    ck_assert_uint_ge(n, 18);
}

/* What is no operation has no row. */
TEST(nothing_else_has_a_row)
{
    const ProtobufCMessageDescriptor *d = &nvllm__v1__client_frame__descriptor;

    for (int i = -1; i < 1000; i++)
        if (i < FIRST_OP || !protobuf_c_message_descriptor_get_field(d, (unsigned)i))
            ck_assert_ptr_null(operation_of((Nvllm__V1__ClientFrame__OpCase)i));
}

/* Root, the daemon's user and members of the group are admins, by first or further groups. */
TEST(admins_are_root_self_and_the_group)
{
    const gid_t groups[] = {5, 77, 9};
    struct rights r = {.own_uid = 500, .has_group = true, .group = 77};
    struct ucred peer = {.uid = 0, .gid = 0};

    ck_assert(rights_is_admin(&r, &peer, NULL, 0));
    peer.uid = 500;
    ck_assert(rights_is_admin(&r, &peer, NULL, 0));
    peer.uid = 501;
    ck_assert(!rights_is_admin(&r, &peer, NULL, 0));
    ck_assert(rights_is_admin(&r, &peer, groups, 3));
    ck_assert(!rights_is_admin(&r, &peer, groups, 1));
    peer.gid = 77;
    ck_assert(rights_is_admin(&r, &peer, NULL, 0));
    r.has_group = false;
    ck_assert(!rights_is_admin(&r, &peer, groups, 3));
    r.group = 0; /* no group is not group 0 */
    peer.gid = 0;
    ck_assert(!rights_is_admin(&r, &peer, NULL, 0));
}

/* A group that is not there is an error that names the option; none is none. */
TEST(the_group_must_be_there)
{
    struct rights r;
    struct err e;

    ck_assert_int_eq(rights_init(&r, "", &e), 0);
    ck_assert(!r.has_group);
    ck_assert_uint_eq(r.own_uid, geteuid());
    ck_assert_int_lt(rights_init(&r, "no-such-group-here", &e), 0);
    ck_assert_ptr_nonnull(strstr(e.text, "daemon.admin_group"));
    ck_assert_int_eq(rights_init(&r, "root", &e), 0);
    ck_assert(r.has_group);
    ck_assert_uint_eq(r.group, 0);
}

/* The peer of a socket is who the kernel says. */
TEST(the_peer_comes_from_the_kernel)
{
    struct rights r = {.own_uid = geteuid(), .has_group = true, .group = 12345};
    struct ucred peer;
    bool admin = false;
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ck_assert_int_eq(rights_of_peer(&r, fds[0], &peer, &admin), 0);
    ck_assert_uint_eq(peer.uid, geteuid());
    ck_assert_int_eq(peer.pid, getpid());
    ck_assert(admin);
    close(fds[0]);
    close(fds[1]);
    ck_assert_int_lt(rights_of_peer(&r, fds[0], &peer, &admin), 0);
}

RUN_TESTS("rights", NULL, NULL)
