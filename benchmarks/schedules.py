"""The picture of the schedules in docs/owner.md: learning rate over a thousand rounds."""

import argparse
from pathlib import Path

from picture import draw

from atom.optim.rate import RateSettings, learning_rate

DOCS = Path(__file__).parents[1] / "docs" / "img" / "schedules.png"
SHOWN = {
    'decay = "constant"': RateSettings(1.0, 0.0, 100, "constant", 1000),
    'decay = "linear"': RateSettings(1.0, 0.1, 100, "linear", 1000),
    'decay = "cosine"': RateSettings(1.0, 0.1, 100, "cosine", 1000),
    'decay = "1-sqrt", decay_rounds = 200 (WSD)': RateSettings(1.0, 0.1, 100, "1-sqrt", 1000, 200),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=DOCS)
    rounds = range(1, 1001)
    curves = {name: [(r, learning_rate(its, r)) for r in rounds] for name, its in SHOWN.items()}
    title = "warmup_rounds = 100, final_learning_rate = a tenth"
    up = "learning rate / the highest"
    draw(parser.parse_args().picture, curves, title, "round", up, marker="")


if __name__ == "__main__":
    main()
