"""ASTune from Python: what the commands do, each as one function of a file of its own. `astune` exports them:

run = astune.tune(solve, tasks=[{"query": "6 * 7?", "answer": "42"}], judge=exact, model="Qwen/Qwen3-0.6B")
"""
