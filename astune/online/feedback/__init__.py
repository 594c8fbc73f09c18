"""What users say of answers: from the body of a request to what the store keeps.

new = read_feedback(body, client="", received=time.time(), rules=config.astune.online.feedback)
outcome = await writer.write(lambda connection: add(connection, new, rules))     # astune.store.feedback.states
"""

from astune.online.feedback.metrics import feedback_metrics
from astune.online.feedback.reading import new_feedback, read_feedback, redacted

__all__ = ["feedback_metrics", "new_feedback", "read_feedback", "redacted"]
