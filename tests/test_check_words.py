"""The check of names and docstrings that `make check` runs."""

from scripts.check_words import find_problems

SOURCE = '''
def shown(row): ...

def show(row):
    """What the user sees."""

def list_files(folder):
    """What is in a folder."""

def feed(row):
    """Feed it."""

class Row:
    @property
    def known(self): ...
'''


def test_participles_and_weak_docstrings_of_functions_are_found() -> None:
    assert [(line, problem.split(":")[0]) for line, problem in find_problems(SOURCE)] == [
        (2, "shown begins with a participle"),
        (4, "the docstring of show begins with 'what'"),
    ]
