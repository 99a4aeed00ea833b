"""Clients of other users: connections made as somebody else, which the daemon sees by the kernel.

Only root can be others: tests that need them are skipped for everybody else."""

import contextlib
import grp
import os
import unittest

import wire

USER, OTHER = 61001, 61002  # no names are needed


def need_root():
    if os.geteuid() != 0:
        raise unittest.SkipTest("only root can connect as other users")


def group_name():
    """Some group that is not root's."""
    return next(g for g in grp.getgrall() if g.gr_gid not in (0, USER, OTHER)).gr_name


@contextlib.contextmanager
def acting_as(uid, gid=None, groups=()):
    """The process is somebody else's meanwhile. A socket keeps whose it was when it connected."""
    before = os.getgroups()
    os.setgroups(list(groups))
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


def connect(daemon, uid, gid=None, groups=(), path=None, **options):
    os.chmod(daemon.folder, 0o755)
    with acting_as(uid, gid, groups):
        return wire.Wire(path or daemon.socket, **options)
