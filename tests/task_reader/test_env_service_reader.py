import pytest

from astune.config.tasks import TaskReaderConfig
from astune.environment.environment_base import Environment
from astune.environment.server import EnvServer
from astune.errors import ConfigError, TaskError
from astune.task_reader import make_reader
from astune.types import Task


class Numbers(Environment):
    def __init__(self, env_type):
        self.env_type = env_type

    def task_ids(self, split):
        if split not in ("train", "test"):
            raise TaskError(f"no split {split!r}; there are train and test")
        return [f"{split}-{number}" for number in range(3)]

    def create(self, task_id, params):
        raise AssertionError("reading tasks makes no instance")


@pytest.fixture
def serve():
    running = []

    def started(*env_types, **options):
        running.append(EnvServer([Numbers(env_type) for env_type in env_types], **options))
        return running[-1].__enter__().url

    yield started
    for server in running:
        server.__exit__(None, None, None)


def reader(url, **options):
    settings = {"env_url": url, "retries": 0, **options}
    return make_reader(TaskReaderConfig.model_validate({"type": "env_service", "env_service": settings}))


def test_the_tasks_are_the_services(serve):
    url = serve("numbers")
    read = reader(url + "/", validation_split="test")
    tasks = read.read("training")
    assert tasks == [Task(f"train-{n}", "", env_type="numbers") for n in range(3)] == read.read("training")
    assert tasks[1].place == f"{url} train[1]"
    assert [task.task_id for task in read.read("validation")] == ["test-0", "test-1", "test-2"]


def test_without_a_validation_split_there_are_no_held_out_tasks():
    assert reader("http://127.0.0.1:9").read("validation") == []


def test_the_type_of_environment_is_named_where_there_are_several(serve):
    url = serve("numbers", "letters")
    with pytest.raises(TaskError, match=rf"env_service\.env_type: not set; expected .* {url} serves: numbers, letters"):
        reader(url).read("training")
    assert {task.env_type for task in reader(url, env_type="letters").read("training")} == {"letters"}
    with pytest.raises(
        TaskError, match=r"training_split 'train': .*get_env_profile: the service says unknown_env_type"
    ):
        reader(url, env_type="lettres").read("training")


def test_an_unknown_split_is_told_in_the_services_words(serve):
    with pytest.raises(TaskError, match=r"env_service\.validation_split 'held': .*no split 'held'; there are train"):
        reader(serve("numbers"), validation_split="held").read("validation")


@pytest.mark.parametrize("env_type", [None, "numbers"])
def test_where_no_service_runs_it_says_how_to_start_one(env_type):
    with pytest.raises(
        TaskError, match=r"cannot be reached .*\(1 attempt\)\. Is a service running there\? `astune env"
    ):
        reader("http://127.0.0.1:9", env_type=env_type).read("training")


def test_a_token_is_sent_and_a_refusal_explained(serve, monkeypatch):
    url = serve("numbers", token="secret")
    monkeypatch.setenv("NUMBERS_TOKEN", "secret")
    assert len(reader(url, token_variable="NUMBERS_TOKEN").read("training")) == 3
    with pytest.raises(TaskError, match=r"asks for a token: astune\.task_reader\.env_service\.token_variable"):
        reader(url).read("training")


def test_without_an_address_there_is_nothing_to_read():
    with pytest.raises(ConfigError, match=r"env_service\.env_url: not set"):
        reader(None).read("training")
