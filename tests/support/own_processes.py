"""A plugin of pytest: tests marked `own_process` run in a process that was forked for them.

The library `deltalake` has threads from its first use on, and refuses to work in a fork of such a
process, as those of the kit are. So no process of pytest itself may use it.
"""

import os
import traceback

import pytest

_PASSED = b"passed"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in a fork; its fixtures stay in this process."""
    if pyfuncitem.get_closest_marker("own_process") is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_exit(writing, pyfuncitem, given)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if text != _PASSED:
        pytest.fail(text.decode() or "the process of the test has died", pytrace=False)
    return True


def _run_and_exit(writing: int, item: pytest.Function, given: dict) -> None:
    try:
        item.obj(**given)
        text = _PASSED
    except BaseException:  # noqa: BLE001  as pytest itself does
        text = traceback.format_exc().encode()
    while text:
        text = text[os.write(writing, text) :]
    os._exit(0)
