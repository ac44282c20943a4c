"""Where a store file may lie: not behind a link, not where everybody may write, not on a network file system."""

import os
import re
import sys
from pathlib import Path

from memories.core.trust import open_to_everybody
from memories.errors import StoreError

# Several machines see them, but not each other's locks and shared memory, which SQLite's log needs. Folders that a
# virtual machine shares with its host are such file systems too: their locks end at the machine's border.
_NETWORK = frozenset(
    "nfs nfs3 nfs4 nfsd cifs smb smb2 smb3 smbfs ncpfs ncp afs afpfs coda ceph cephfs glusterfs lustre beegfs fhgfs "
    "gpfs mmfs ocfs2 gfs gfs2 orangefs pvfs2 panfs wekafs quobyte davfs davfs2 moosefs acfs vxfs_cluster dlmfs "
    "9p virtiofs vboxsf prl_fs prl_fs_freeze vmhgfs hgfs drvfs osxfs fakeowner macfuse osxfuse".split()
)
# Most of what runs on FUSE is a network or cloud drive, and new ones appear every year; so the local ones are listed.
_LOCAL_FUSE = frozenset(
    "fuse-overlayfs overlayfs-fuse unionfs unionfs-fuse mergerfs mhddfs aufs bindfs encfs gocryptfs cryfs securefs "
    "ecryptfs veracrypt dislocker ntfs ntfs-3g exfat exfat-fuse ext2 ext4 fuse2fs fuse-ext2 lklfuse apfs apfs-fuse "
    "hfsfuse zfs zfs-fuse fusecompress squashfuse snapfuse".split()
)
_checked: set[Path] = set()

Identity = tuple[int, int]


def identity(path: str) -> Identity | None:
    """Return what distinguishes a file from another of the same name; by stat, never by opening it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StoreError(f"cannot use {path}: {exc.strerror or exc}") from exc
    return found.st_dev, found.st_ino


def refuse_unsafe(path: Path) -> None:
    """Refuse a symbolic link, and a file or folder that everybody may write or another user owns."""
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; name the file itself")
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file")
    if os.name != "posix":
        return
    for part in (path.parent, path):
        if not part.exists():
            continue
        found = part.stat()
        if doubt := open_to_everybody(part, found):
            raise StoreError(f"{part} {doubt}")
        if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise StoreError(f"{part} belongs to another user; set MEMORY_HOME to a folder of your own")


def refuse_network(folder: Path) -> None:
    """Refuse a folder on a file system that other machines may use at the same time, for reading too.

    Even reading needs the locks: without them, a page may be read while another machine overwrites it. Looked up once
    in a process for each folder.
    """
    if folder in _checked or not sys.platform.startswith("linux"):
        return
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    kind = filesystem_of(str(folder.resolve()), mounts)
    if is_network(kind):
        raise StoreError(
            f"{folder} is on a network filesystem ({kind}), where SQLite's locks and log do not work; copy the whole "
            "folder to a local disk and set MEMORY_HOME to it, or use a server's store, such as postgresql://"
        )
    _checked.add(folder)


def is_network(kind: str) -> bool:
    """Return whether a kind of file system is shared by several machines, or may be."""
    if kind == "fuse" or kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind.lower() in _NETWORK


def filesystem_of(resolved: str, mounts: str) -> str:
    """Return the kind of filesystem of a path, given the text of /proc/self/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        _, escaped, found, *_ = line.split(" ")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), escaped) if "\\" in escaped else escaped
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
