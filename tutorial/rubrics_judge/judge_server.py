"""Plays the language model of this tutorial on your machine, until Ctrl-C: no account, no GPU, no network.

It is no model: by rules it sees whether an answer names the order, says the next step, apologises and so on, proposes
criteria from that, and judges by them. An API of your own takes its place with JUDGE_URL and JUDGE_MODEL.
"""

import argparse
import threading

from astune.testing import PlantedWorld

PLANTED = ("next_step", "order_number", "no_apology")
WORLD = PlantedWorld(seed=0, n_examples=0, judge_noise=0.0, planted=PLANTED)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    with WORLD.server(parser.parse_args().port) as server:
        print(f"serving {server.base_url}; Ctrl-C ends it", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("ended")
