from typing import Any

MultiModalDataDict = dict[str, Any]
