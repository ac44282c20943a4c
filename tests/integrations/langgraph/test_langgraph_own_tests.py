"""LangGraph's own tests of its `SqliteStore`, run on `MemoriesStore`.

`tests/data/langgraph_store_tests.txt` is their file, unchanged. All pass except those in
`DIFFERENT`; docs/langgraph.md describes the differences.
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

DATA = Path(__file__).parents[2] / "data"
DIFFERENT = {
    # These test the internals of `SqliteStore`: its SQL, its migrations, its dimension.
    *("test_nonnull_migrations", "test_escape_glob_literal", "test_namespace_match_pattern"),
    *("test_list_namespaces_prefix_uses_indexable_condition", "test_vector_store_initialization"),
    # Our scores include words; theirs are cosines.
    *("test_scores", "test_embed_with_path", "test_embed_with_path_operation_config"),
    # A query finds the items that match it; theirs returns every item, ordered by cosine.
    *("test_vector_search_with_filters", "test_vector_search_pagination"),
    # A member's name is never used as SQL, so it isn't checked.
    "test_sql_injection_vulnerability",
    # A label with a line break is refused.
    "test_namespace_labels_with_trailing_newline",
}


def test_all_langgraph_tests_pass_except_the_listed_ones(tmp_path: Path) -> None:
    text = (DATA / "langgraph_store_tests.txt").read_text(encoding="utf-8")
    (tmp_path / "test_store.py").write_text(text, encoding="utf-8")
    shim = (DATA / "langgraph_shim.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(shim, encoding="utf-8")
    options = "-q -p no:cacheprovider -p no:amplifier_module -p no:langsmith_plugin --rootdir ."
    command = [sys.executable, "-m", "pytest", *options.split(), "--junitxml=results.xml"]
    environment = {**os.environ, "MEMORY_HOME": str(tmp_path / "home")}
    subprocess.run(
        [*command, "test_store.py"],
        cwd=tmp_path,
        env=environment,
        timeout=200,
        capture_output=True,
        check=False,
    )
    failed: set[str] = set()
    passed: set[str] = set()
    for case in ElementTree.parse(tmp_path / "results.xml").iter("testcase"):
        is_failed = case.find("failure") is not None or case.find("error") is not None
        (failed if is_failed else passed).add(str(case.get("name")).partition("[")[0])
    assert failed == DIFFERENT
    assert len(passed) >= 26
