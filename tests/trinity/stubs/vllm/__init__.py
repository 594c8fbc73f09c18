"""In place of vLLM, which needs a GPU: the names that Trinity 0.6.0 imports from it at the top of
`trinity/common/models/mm_utils.py`, for pictures and video in prompts, whatever the engine."""
