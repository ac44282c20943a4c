"""The project of a folder, over real git repositories."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event
from uuid import uuid4

import pytest

from memories import Memories
from memories.config import load_config
from memories.core.disk import locked
from memories.guard.origin import Place
from memories.identity import git as repositories
from memories.identity import place, registry
from memories.identity.project import Project, identify, remote_name

ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "PATH": os.environ["PATH"],
}
ACME = "https://example.com/acme/shop.git"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate home for Git and for Memories, with no repository above the tests' folders."""
    made = tmp_path / "home"
    made.mkdir()
    for name in ("HOME", "MEMORY_HOME"):
        monkeypatch.setenv(name, str(made))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return made


def git(folder: Path, *arguments: str) -> str:
    """Run Git in a folder; return its output."""
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    home = {"HOME": os.environ["HOME"]}
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT | home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def create_repository(folder: Path, commits: int = 1, remote: str | None = None) -> Path:
    """Create a repository with commits and a remote."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for number in range(commits):
        git(folder, "commit", "-q", "--allow-empty", "-m", f"{folder} {number} {uuid4()}")
    if remote:
        git(folder, "remote", "add", "origin", remote)
    return folder


def project_of(folder: Path) -> Project:
    """Return the project of a folder, which must have one."""
    project = identify(folder)
    assert project is not None
    return project


def name_of(folder: Path) -> str:
    """Return the name of a folder's project."""
    return project_of(folder).name


def test_without_a_repository_there_is_no_project(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    assert identify(tmp_path / "shop") is None
    assert identify(tmp_path / "missing") is None


def test_a_subfolder_belongs_to_the_same_project(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    (top / "src" / "deep").mkdir(parents=True)
    assert (
        project_of(top / "src" / "deep")
        == project_of(top)
        == Project("example.com/acme/shop", top, "main")
    )


def test_working_trees_share_a_project_and_have_their_own_branches(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    git(top, "worktree", "add", "-q", "-b", "feature/one", "../one")
    other = project_of(tmp_path / "one")
    assert (other.name, other.branch, other.worktree) == (name_of(top), "feature/one", "one")
    assert other.root == tmp_path / "one"


def test_working_trees_of_a_bare_repository_share_a_project(tmp_path: Path) -> None:
    git(
        tmp_path, "clone", "-q", "--bare", str(create_repository(tmp_path / "source")), "shop/.bare"
    )
    (tmp_path / "shop" / ".git").write_text("gitdir: ./.bare\n")
    for each in ("one", "two"):
        git(tmp_path / "shop", "worktree", "add", "-q", "-b", each, each)
    names = {
        name_of(tmp_path / each)
        for each in ("shop", "shop/.bare", "shop/one", "shop/two", "source")
    }
    assert len(names) == 1
    git(tmp_path / "shop", "remote", "remove", "origin")
    other = (tmp_path / "shop").rename(tmp_path / "till")
    assert (name_of(other), name_of(tmp_path / "source")) == ("till", "source")


def test_only_clones_of_the_same_remote_share_a_project(tmp_path: Path) -> None:
    one, two = (
        create_repository(tmp_path / "one", remote=ACME),
        create_repository(tmp_path / "two", remote=ACME),
    )
    fork = create_repository(tmp_path / "shop", remote="https://example.com/bob/shop")
    assert name_of(one) == name_of(two) != name_of(fork)


def test_a_repository_without_a_remote_is_named_after_its_folder(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    git(tmp_path, "clone", "-q", str(top), "copy")
    git(tmp_path / "copy", "remote", "remove", "origin")
    git(tmp_path, "clone", "-q", "--bare", str(top), "till.git")
    git(tmp_path / "till.git", "remote", "remove", "origin")
    assert (name_of(top), name_of(tmp_path / "copy"), name_of(tmp_path / "till.git")) == (
        "shop",
        "copy",
        "till",
    )


def test_a_folder_name_that_is_taken_gets_a_suffix(tmp_path: Path, home: Path) -> None:
    assert name_of(create_repository(tmp_path / "shop")) == "shop"
    second, third = (create_repository(tmp_path / place / "shop") for place in ("second", "third"))
    provisional = identify(second, record=False)
    assert provisional is not None
    assert name_of(second) == name_of(second) == provisional.name
    assert re.fullmatch(r"shop-[0-9a-f]{12}", name_of(second))
    assert len({name_of(tmp_path / "shop"), name_of(second), name_of(third)}) == 3
    registry.set_alias(home, "example.com/acme/till", "till")
    assert name_of(create_repository(tmp_path / "till")) != "till"


def test_circular_aliases_are_listed_once() -> None:
    """The file may have been edited by hand."""
    assert registry.names_of("shop", {"shop": "till", "till": "shop"}) == ["shop"]


@pytest.mark.parametrize(
    ("other", "expected"), [("elsewhere/shop", r"shop-[0-9a-f]{12}"), ("shop", "shop")]
)
def test_a_name_that_another_process_stores_at_the_same_time_is_taken(
    other: str, expected: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, waits = create_repository(tmp_path / "shop"), Event()

    def locked_with_notice(path: Path) -> AbstractContextManager[None]:
        waits.set()
        return locked(path)

    monkeypatch.setattr(registry, "locked", locked_with_notice)
    (home / ".projects").mkdir()
    with ThreadPoolExecutor(1) as threads:
        with locked(home / ".projects" / ".names.lock"):
            answer = threads.submit(name_of, top)
            assert waits.wait(60)
            registry.remember(
                home, registry.Repository(str(tmp_path / other / ".git"), "shop", None, None, 0)
            )
        assert re.fullmatch(expected, answer.result(60))


def test_if_no_name_can_be_stored_every_repository_gets_a_suffix(
    tmp_path: Path, home: Path
) -> None:
    (home / ".projects" / ".names.lock").mkdir(parents=True)
    one, two = (
        create_repository(tmp_path / "one" / "shop"),
        create_repository(tmp_path / "two" / "shop"),
    )
    first = name_of(one)
    git(one, "commit", "-q", "--allow-empty", "-m", "more")
    assert name_of(one) == first != name_of(two)
    assert first.startswith("shop-")


@pytest.mark.parametrize("first_commit", [None, "", "1" * 40])
def test_a_name_that_an_earlier_version_derived_from_the_first_commit_is_kept(
    first_commit: str | None, tmp_path: Path, home: Path
) -> None:
    top = create_repository(tmp_path / "shop", commits=2)
    common = top / ".git"
    fields = {
        "folder": str(common),
        "name": "git-cc1ff8c69e09",
        "remote": None,
        "first": first_commit,
    }
    fields |= {"commit": git(top, "rev-parse", "HEAD"), "number": common.stat().st_ino}
    registry.remember(home, registry.Repository(str(common), "x", None, None, 0))
    [file] = (home / ".projects").iterdir()
    file.write_text(json.dumps(fields))
    assert name_of(top) == "git-cc1ff8c69e09"
    moved = top.rename(tmp_path / "renamed")
    assert name_of(moved) == "git-cc1ff8c69e09"
    git(moved, "remote", "add", "origin", ACME)
    assert (
        name_of(moved)
        == name_of(create_repository(tmp_path / "clone", remote=ACME))
        == "git-cc1ff8c69e09"
    )


def test_a_project_keeps_its_name_when_its_commits_are_replaced(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    assert name_of(top) == "shop"
    before = git(top, "rev-parse", "HEAD")
    git(top, "commit", "-q", "--amend", "--allow-empty", "-m", "another")
    git(top, "reflog", "expire", "--expire=now", "--all")
    git(top, "gc", "-q", "--prune=now")
    assert not repositories.has_commit(top / ".git", before)
    assert name_of(top) == "shop"


def test_a_project_that_was_restored_from_a_backup_keeps_its_name(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "other" / "shop")
    assert name_of(create_repository(tmp_path / "shop")) == "shop"
    before = name_of(top)
    shutil.copytree(top, tmp_path / "backup")
    top.rename(tmp_path / "gone")
    shutil.copytree(tmp_path / "backup", top)
    assert name_of(top) == before


def test_a_clone_of_a_local_clone_has_the_name_of_the_original(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    git(tmp_path, "clone", "-q", "shop", "copy")
    git(tmp_path, "clone", "-q", f"file://{tmp_path / 'copy'}", "second")
    assert name_of(tmp_path / "second") == name_of(tmp_path / "copy") == name_of(top)


def test_clones_of_each_other_do_not_recurse_forever(tmp_path: Path) -> None:
    one = create_repository(tmp_path / "one", remote="../two")
    create_repository(tmp_path / "two", remote="../one")
    assert name_of(one)


@pytest.mark.first(2)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_commits_are_found_among_loose_objects_and_in_packs(
    packed: bool, form: str, tmp_path: Path
) -> None:
    top = tmp_path / "shop"
    top.mkdir()
    git(top, "init", "-q", "-b", "main", f"--object-format={form}")
    for number in range(20):
        git(top, "commit", "-q", "--allow-empty", "-m", str(number))
    if packed:
        git(top, "repack", "-adfq", "--depth=50", "--window=50")
        git(top, "pack-refs", "--all", "--prune")
    commits = git(top, "rev-list", "HEAD").split()
    assert repositories.latest_commit(top / ".git", None) == commits[0]
    assert [each for each in commits if not repositories.has_commit(top / ".git", each)] == []
    changed = [each[:-1] + ("0" if each[-1] != "0" else "1") for each in commits]
    assert [
        each
        for each in (*changed, "0" * 40, "f" * 64, "", "../x")
        if repositories.has_commit(top / ".git", each)
    ] == []


def test_borrowed_commits_of_a_shared_clone_are_found(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", commits=3)
    git(tmp_path, "clone", "-q", "--shared", "shop", "copy")
    assert repositories.has_commit(tmp_path / "copy" / ".git", git(top, "rev-parse", "HEAD~2"))


def test_a_project_keeps_its_name_when_a_remote_is_added_changed_and_removed(
    tmp_path: Path,
) -> None:
    top = create_repository(tmp_path / "shop")
    first = name_of(top)
    git(top, "remote", "add", "origin", ACME)
    assert name_of(top) == first
    assert (
        name_of(create_repository(tmp_path / "clone", remote=ACME)) == first
    )  # and so is another clone
    git(top, "remote", "set-url", "origin", "https://example.com/new/shop")
    assert name_of(top) == first
    git(top, "remote", "remove", "origin")
    assert name_of(top) == first


def test_a_project_keeps_its_name_when_its_first_commit_is_made(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", commits=0)
    before = name_of(top)
    git(top, "commit", "-q", "--allow-empty", "-m", "one")
    assert before == "shop" and name_of(top) == before
    git(top, "remote", "add", "origin", ACME)
    assert name_of(top) == before


def test_another_repository_in_the_same_place_is_a_separate_project(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    before = name_of(top)
    top.rename(tmp_path / "gone")
    other = create_repository(tmp_path / "shop", commits=2)
    assert name_of(other) != before
    without = [name_of(other)]
    for away in ("gone too", "gone as well"):
        other.rename(tmp_path / away)
        other = create_repository(tmp_path / "shop")
        without.append(name_of(other))
    assert len({before, *without, "shop"}) == 5
    other.rename(tmp_path / "gone at last")
    assert (
        name_of(create_repository(tmp_path / "shop", remote="https://example.com/acme/till"))
        == "example.com/acme/till"
    )


def test_a_clone_whose_folder_reuses_an_inode_is_a_separate_project(
    tmp_path: Path, home: Path
) -> None:
    """File systems reuse the inode number of a removed folder."""
    top = create_repository(tmp_path / "shop")
    assert name_of(top) == "shop"
    known = registry.find_repository(home, top / ".git")
    assert known is not None
    top.rename(tmp_path / "gone")
    create_repository(top, remote="https://example.com/acme/till")
    registry.remember(home, known._replace(number=(top / ".git").stat().st_ino))
    assert name_of(top) == "example.com/acme/till"


def test_adding_the_remote_of_another_project_does_not_rename_either(tmp_path: Path) -> None:
    known = name_of(create_repository(tmp_path / "shop", remote=ACME))
    other = create_repository(tmp_path / "other")
    before = name_of(other)
    git(other, "remote", "add", "origin", ACME)
    assert name_of(other) == before
    assert name_of(tmp_path / "shop") == known == "example.com/acme/shop"


def test_a_moved_folder_keeps_its_project(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    before = name_of(top)
    assert name_of(top.rename(tmp_path / "renamed")) == before


def test_an_alias_replaces_the_name_of_a_project(tmp_path: Path, home: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    registry.set_alias(home, "example.com/acme/shop", "shop")
    assert name_of(top) == "shop"
    registry.set_alias(home, "example.com/acme/shop", None)
    assert name_of(top) == "example.com/acme/shop"


def test_identifying_a_project_without_recording_it_writes_nothing(
    tmp_path: Path, home: Path
) -> None:
    top = create_repository(tmp_path / "shop")
    assert identify(top, record=False) is not None
    assert list(home.iterdir()) == []


def test_the_users_git_configuration_can_name_the_project_and_its_subfolders(
    tmp_path: Path,
) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    (top / "packages" / "api" / "src").mkdir(parents=True)
    git(top, "config", "memories.project", "Web Shop")
    git(top, "config", "memories.packages/api.project", "api")
    assert (name_of(top), name_of(top / "packages")) == ("Web Shop", "Web Shop")
    assert name_of(top / "packages" / "api" / "src") == "api"


def test_each_working_tree_or_clone_can_be_its_own_project(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    git(top, "worktree", "add", "-q", "../one")
    git(top, "config", "memories.scope", "worktree")
    assert (name_of(top), name_of(tmp_path / "one")) == (
        "example.com/acme/shop",
        "example.com/acme/shop#one",
    )
    clone = create_repository(tmp_path / "clone", remote=ACME)
    git(clone, "config", "memories.scope", "clone")
    assert name_of(clone).startswith("example.com/acme/shop#") and name_of(clone) != name_of(top)


def test_one_working_tree_can_have_its_own_setting(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    git(top, "worktree", "add", "-q", "../one")
    git(top, "config", "extensions.worktreeConfig", "true")
    git(tmp_path / "one", "config", "--worktree", "memories.project", "mine")
    assert (name_of(top), name_of(tmp_path / "one")) == ("example.com/acme/shop", "mine")


def test_tracked_files_cannot_choose_the_project(tmp_path: Path) -> None:
    """Neither a file that the configuration includes nor a folder that looks like a repository
    names the project.
    """
    source = create_repository(tmp_path / "source")
    (source / ".gitconfig").write_text("[memories]\n project = victim\n scope = clone\n")
    bare = source / "bare"
    (bare / "objects").mkdir(parents=True)
    (bare / "refs").mkdir()
    (bare / "HEAD").write_text("ref: refs/heads/main\n")
    (bare / "config").write_text(
        f'[memories]\n project = victim\n[remote "origin"]\n url = {ACME}\n'
    )
    for each in (bare / "objects", bare / "refs"):
        (each / "x").write_text("")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "all")
    git(tmp_path, "clone", "-q", "source", "clone")
    git(tmp_path / "clone", "config", "include.path", "../.gitconfig")
    assert name_of(tmp_path / "clone") == name_of(source)
    assert name_of(tmp_path / "clone" / "bare") == name_of(source)


def test_the_remote_may_be_in_an_included_file(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    (top / ".git" / "more").write_text(f'[remote "origin"]\n\turl = {ACME}\n')
    git(top, "config", "include.path", "more")
    assert name_of(top) == "example.com/acme/shop"


def test_a_submodule_is_its_own_project(tmp_path: Path) -> None:
    part = create_repository(tmp_path / "part")
    top = create_repository(tmp_path / "shop")
    git(top, "submodule", "add", "-q", str(part), "lib")
    assert name_of(top / "lib") == name_of(part) != name_of(top)
    assert project_of(top / "lib").root == top / "lib"


def test_folders_inside_a_git_folder_or_bare_repository_belong_to_its_project(
    tmp_path: Path,
) -> None:
    top = create_repository(tmp_path / "shop")
    git(tmp_path, "clone", "-q", "--bare", "shop", "copy.git")
    assert name_of(tmp_path / "copy.git" / "refs") == name_of(top)
    assert name_of(top / ".git" / "hooks") == name_of(top)


def test_a_detached_head_has_no_branch(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", commits=2)
    assert project_of(top).branch == "main"
    git(top, "checkout", "-q", "HEAD~1")
    assert project_of(top).branch is None


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    (tmp_path / "link").symlink_to(top, target_is_directory=True)
    assert project_of(tmp_path / "link") == project_of(top)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert identify(tmp_path / "loop") is None


def test_short_forms_of_remotes_are_expanded(tmp_path: Path, home: Path) -> None:
    (home / ".gitconfig").write_text(
        '[url "https://example.com/"]\n\tinsteadOf = x:\n\tinsteadOf = acme:\n'
    )
    top = create_repository(tmp_path / "shop", remote="acme:acme/shop")
    assert name_of(top) == "example.com/acme/shop"


@pytest.mark.parametrize(
    "config",
    [
        '[remote "origin"\n',
        "[" * 100_000,
        "x" * 300_000,
        "[include]\n path = config\n",
        "\0\0\0",
        "=\n=",
        '[remote "origin"]\n url = "\n',
        "[memories]\n project = a\\nb\n",
        "[memories]\n project =\n",
        "[core",
        f"[memories]\n project = {'x' * 300}\n",
        '[remote "origin"]\n url = ext::sh -c touch% /tmp/x\n',
        "\\" * 9,
        '[remote "origin"]\n url\n',
        '[remote "ori\\\\gin"] url = https://u:p@/\n',
        '[a "b\\',
    ],
)
def test_a_hostile_configuration_cannot_rename_a_project(config: str, tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop")
    before = name_of(top)
    (top / ".git" / "config").write_text(config)
    project = identify(top)
    assert project is None or project.name == before


@pytest.mark.parametrize(
    "file", ["HEAD", "config", "commondir", "packed-refs", "shallow", "objects/info/alternates"]
)
def test_pipes_folders_links_and_junk_in_place_of_files_do_no_harm(
    file: str, tmp_path: Path
) -> None:
    top = create_repository(tmp_path / "shop")
    for make in (
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to(path),
        lambda path: path.write_bytes(b"\xff" * 99),
    ):
        target = top / ".git" / file
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        target.unlink(missing_ok=True)
        make(target)
        assert identify(top) is None or name_of(top)


def test_a_git_file_that_points_nowhere_names_no_project(tmp_path: Path) -> None:
    top = tmp_path / "shop"
    top.mkdir()
    for text in ("", "gitdir: ", "gitdir: ../missing\n", "gitdir: .\n", "x" * 10_000, "gitdir: \0"):
        (top / ".git").write_text(text)
        assert identify(top) is None


def test_damaged_packs_do_not_change_the_name(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", commits=3)
    git(top, "repack", "-adq")
    assert name_of(top) == "shop"
    latest = git(top, "rev-parse", "HEAD")
    for pack in (top / ".git" / "objects" / "pack").iterdir():
        pack.chmod(0o600)
        whole = pack.read_bytes()
        for size in (0, 7, 8, 1_000, 1_040):
            pack.write_bytes(whole[:size])
            assert not repositories.has_commit(top / ".git", latest) or pack.suffix != ".idx"
            assert name_of(top) == "shop"


def test_a_shallow_clone_without_a_remote_is_named_after_its_folder(tmp_path: Path) -> None:
    top = create_repository(tmp_path / "shop", commits=3)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{top}", "copy")
    git(tmp_path / "copy", "remote", "remove", "origin")
    assert name_of(tmp_path / "copy") == "copy"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files away")
def test_another_users_repository_is_trusted_only_if_git_trusts_it(
    tmp_path: Path, home: Path
) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    os.chown(top / ".git", 4321, 4321)
    assert identify(top) is None
    (home / ".gitconfig").write_text(f"[safe]\n\tdirectory = {top}\n")
    assert name_of(top) == "example.com/acme/shop"


SAME = "github.com/alice/shop"


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/alice/shop",
        "https://github.com/alice/shop.git",
        "https://github.com/Alice/Shop.git/",
        "http://github.com/alice/shop",
        "git@github.com:alice/shop.git",
        "github.com:alice/shop",
        "ssh://git@github.com/alice/shop.git",
        "ssh://git@github.com:22/alice/shop",
        "git://github.com/alice/shop.git",
        "ssh://git@ssh.github.com:443/alice/shop.git",
        "git+ssh://git@github.com/alice/shop",
        "https://alice:ghp_secret@github.com/alice/shop.git",
        "https://x-access-token:abc@github.com:443/alice/shop",
        "https://GITHUB.com/alice//shop/",
        "https://github.com/alice/shop.git?token=1#x",
        "git@github.com:/alice/shop",
        "https://u:p@ss@github.com/alice/shop",
        "https://www.github.com/alice/shop",
        "github.com.:alice/shop.git",
    ],
)
def test_all_spellings_of_a_remote_give_the_same_name(url: str) -> None:
    assert remote_name(url) == SAME


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://git.example.org/A/x", "git.example.org/A/x"),
        ("ssh://git@git.example.org:2222/A/x.git", "git.example.org/A/x"),
        ("http://localhost:3000/a/x", "localhost:3000/a/x"),
        ("git@ssh.dev.azure.com:v3/org/team/x", "dev.azure.com/org/team/x"),
        ("https://org@dev.azure.com/org/team/_git/x", "dev.azure.com/org/team/x"),
        ("https://org.visualstudio.com/DefaultCollection/team/_git/x", "dev.azure.com/org/team/x"),
        ("https://bits.example.org/scm/team/x.git", "bits.example.org/team/x"),
        ("ssh://git@bits.example.org:7999/team/x.git", "bits.example.org/team/x"),
        ("git@[::1]:a/x.git", "[::1]/a/x"),
        ("https://gitlab.com/group/sub/x", "gitlab.com/group/sub/x"),
        ("https://git.example.org/a%20b/x", "git.example.org/a b/x"),
    ],
)
def test_the_name_of_a_remote_starts_with_its_host(url: str, expected: str) -> None:
    assert remote_name(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/git/x.git",
        "../x",
        "C:\\x",
        "C:/x",
        "file:///srv/x",
        "ext::sh -c true",
        "https://",
        "https://host",
        "https://host/",
        "https://user:pa/ss@host/x",
        "https://host/a/../b",
        "javascript:alert(1)//x\n",
        "a:b\0c",
        "https://host/" + "x" * 300,
        "codecommit::eu://profile@x",
        "https://host/%0a",
        "git@host:",
        "host:.git",
    ],
)
def test_a_url_without_a_valid_host_and_path_gives_no_name(url: str) -> None:
    assert remote_name(url) is None


def test_a_place_reflects_the_branch_and_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = create_repository(tmp_path / "shop", remote=ACME)
    monkeypatch.setattr(place, "_FRESH_SECONDS", 0.0)
    config = load_config({"project_detection": "true"})
    where = place.here(config, top)
    assert where() == ("example.com/acme/shop", "main", top, ("example.com/acme/shop",))
    git(top, "checkout", "-q", "-b", "feature")
    here = where()
    assert here is not None and here[:2] == ("example.com/acme/shop", "feature")
    assert place.here(config._replace(project_detection=False), top)() is None
    monkeypatch.chdir(top)
    with Memories(
        f"sqlite:///{tmp_path}/m.db", embedder="none", channel="mcp", place=place.here(config)
    ) as memories:
        made = memories.create("Deploys happen on Tuesdays").memory
        assert made is not None and made.origin is not None
        assert (made.tags, made.origin.branch) == ({"project": "example.com/acme/shop"}, "feature")
        git(top, "checkout", "-q", "main")
        changed = memories.update(made.id, "Deploys happen on Fridays")
        assert changed.origin is not None and changed.origin.branch == "main"
        [turn] = memories.add_turns("standup", ["we ship"])
        assert turn.tags == {"project": "example.com/acme/shop"}


def test_the_library_adds_no_project_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROJECT_DETECTION", raising=False)
    monkeypatch.chdir(create_repository(tmp_path / "shop", remote=ACME))
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none") as memories:
        made = memories.create("Deploys happen on Tuesdays").memory
        assert made is not None and made.tags == {}


def test_none_and_blanks_do_not_name_a_project() -> None:
    assert place.names_of(None) == place.names_of("") == place.names_of(" \t") == ()
    assert place.names_of(" shop ") == ("shop",)


def test_a_key_belongs_to_the_current_project_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROJECT_DETECTION", raising=False)
    here: Place | None = None
    with Memories(f"sqlite:///{tmp_path}/m.db", embedder="none", place=lambda: here) as memories:
        ids = {
            project: memories.create(
                f"We deploy the {project} on Tuesdays", key="deploy/day", tags=tags
            ).id
            for project, tags in (
                ("shop", {"project": "shop"}),
                ("bank", {"project": "bank"}),
                (None, {}),
            )
        }
        here = Place("shop", "main")
        assert memories.id_of_key("deploy/day") == ids["shop"]
        assert memories.id_of_key("deploy/day", project="bank") == ids["bank"]
        assert memories.id_of_key("deploy/day", project=["garden", "bank"]) == ids["bank"]
        here = Place("garden", "main")
        assert memories.id_of_key("deploy/day") == ids[None]
