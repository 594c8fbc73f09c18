"""Commands about judges: `astune judge-report`, and `astune rubrics`, which learns rubrics."""
