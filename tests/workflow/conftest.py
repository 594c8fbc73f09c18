from tests.gateway.conftest import chat_format as chat_format
from tests.gateway.conftest import make_tuner as make_tuner
