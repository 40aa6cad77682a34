"""torchvision: detection. Non-maximum suppression finds as many boxes as the scores say; the losses have no such step.

The package's own first stage, which scales images to a size that it draws at random, is left out.
"""

import torch
import torchvision
from torchvision.models.detection.image_list import ImageList


class Detector(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.detection.retinanet_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=4, trainable_backbone_layers=5
        )

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        size = (images.shape[2], images.shape[3])
        features = list(self.net.backbone(images).values())
        scores = self.net.head(features)
        anchors = self.net.anchor_generator(ImageList(images, [size]), features)
        if self.training:
            return self.net.compute_loss([{"boxes": boxes, "labels": labels}], scores, anchors)
        one_level = {name: [score] for name, score in scores.items()}
        return self.net.postprocess_detections(one_level, [[anchors[0]]], [size])[0]


model = Detector


def inputs() -> tuple[torch.Tensor, ...]:
    boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0], [20.0, 10.0, 60.0, 50.0]])
    return torch.rand(1, 3, 64, 64), boxes, torch.tensor([1, 2])


def loss(detector: Detector, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return sum(detector(images, boxes, labels).values())
