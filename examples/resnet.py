"""Train ResNet-101 on pictures under a strategy that you can swap.

    mpirun -n 4 python examples/resnet.py                      # small; scikit-learn's digits, enlarged
    mpirun -n 4 python examples/resnet.py --mapper search      # finds a plan first, for 5 seconds
    mpirun -n 4 python examples/resnet.py --preset paper --data DIR  # full size; DIR has train/CLASS/*.jpeg and val/CLASS/*.jpeg
"""

from taskflow.training.networks.resnet import main

if __name__ == "__main__":
    main()
