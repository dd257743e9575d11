"""It computes a training's result in one process and without any network."""

import numpy as np
import torch

from testbed.training import datasets, models, prerequisites
from testbed.training.datasets import splits
from testbed.training.filling import mean_into
from testbed.training.settings import Training


def single_process_weights(
    *, rounds, workers, seed, batch_size, learning_rate, momentum, parts=None
):
    """Train by averaging the workers' gradients in one process, without any network.

    `parts` lists the ranks that take part in each round; the default is all in each.
    """
    dataset = datasets.load("digits")
    model = models.build("small-cnn", seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    shares = splits.shares(splits.Equal(), dataset.groups, workers, seed)
    streams = [splits.batches(share, batch_size, seed, rank) for rank, share in enumerate(shares)]
    for number in range(rounds):
        gradients = []
        drawn = list(map(next, streams))
        for rank in parts[number] if parts else range(workers):
            chosen = drawn[rank]
            model.zero_grad()
            logits = model(dataset.train_inputs[chosen])
            torch.nn.functional.cross_entropy(logits, dataset.train_labels[chosen]).backward()
            by_parameter = [parameter.grad for parameter in model.parameters()]
            gradients.append(
                [gradient.numpy().copy() for gradient in by_parameter if gradient is not None]
            )
        for number, parameter in enumerate(model.parameters()):
            mean = np.empty_like(gradients[0][number])
            mean_into([gradient[number] for gradient in gradients], mean)
            parameter.grad = torch.from_numpy(mean)
        optimiser.step()
    return model.state_dict()


def need_of(model, section, *, workers=3, **training):
    settings = Training(**{"batch_size": 8, "model": model, "dataset": section, **training})
    return prerequisites.Need(settings, hosts=workers + 1, seed=1)
