"""Runs Python's own regression tests for a dozen modules and prints the outcome of every test, one line each, in order.

The `test` package is Python's; on Debian it is in libpython3-testsuite. Times and addresses are left out, so that
the output is the same in every run.
"""
import gc
import importlib
import io
import sys
import unittest
import warnings
from contextlib import redirect_stderr, redirect_stdout

MODULES = """test_list test_dict test_set test_tuple test_bytes test_array test_deque test_heapq test_sort
test_json test_re test_pickle test_struct test_memoryview test_zlib test_csv test_userdict test_generators
test_collections""".split()

# These look at the allocator or the clock and not at the module.
LEFT_OUT = ("sizeof", "bigmem", "no_memory", "nomemory", "refleak")


class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.lines = {}

    def note(self, test, outcome):
        self.lines[test.id()] = outcome

    def addSuccess(self, test):
        self.note(test, "ok")

    def addError(self, test, error):
        self.note(test, f"error {error[0].__name__}")

    def addFailure(self, test, error):
        self.note(test, "failure")

    def addSkip(self, test, reason):
        self.note(test, "skipped")

    def addExpectedFailure(self, test, error):
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        self.note(test, "unexpected success")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note(test, "failure of a part")


def wanted(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from wanted(test)
        elif not any(word in test.id().lower() for word in LEFT_OUT):
            yield test


def main():
    from test import support

    support.use_resources = []
    warnings.simplefilter("ignore")
    total = 0
    for name in MODULES:
        outcomes = Outcomes()
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            module = importlib.import_module(f"test.{name}")
            suite = unittest.TestSuite(wanted(unittest.defaultTestLoader.loadTestsFromModule(module)))
            suite.run(outcomes)
        gc.collect()
        for test, outcome in sorted(outcomes.lines.items()):
            print(test, outcome)
        total += len(outcomes.lines)
    print(total, "tests")
    if total < 1000:
        sys.exit("too few tests were found")


main()
