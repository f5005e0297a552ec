"""Train Inception-v3 on pictures under a strategy that you can swap.

    mpirun -n 4 python examples/inception.py                      # small; scikit-learn's digits, enlarged
    mpirun -n 4 python examples/inception.py --mapper search      # finds a plan first, for 5 seconds
    mpirun -n 4 python examples/inception.py --preset paper --data DIR  # full size; DIR has train/CLASS/*.jpeg and val/CLASS/*.jpeg
"""

from taskflow.training.networks.inception import main

if __name__ == "__main__":
    main()
