"""segment_anything: an image and points that prompt for its masks."""

import torch
from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, TwoWayTransformer


class Segmenter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = ImageEncoderViT(
            img_size=64, embed_dim=32, depth=2, num_heads=2, out_chans=32, use_rel_pos=True, window_size=3,
            global_attn_indexes=(1,),
        )  # fmt: skip
        self.prompts = PromptEncoder(32, (4, 4), (64, 64), mask_in_chans=8)
        two_way = TwoWayTransformer(depth=2, embedding_dim=32, num_heads=2, mlp_dim=64)
        self.masks = MaskDecoder(transformer_dim=32, transformer=two_way, iou_head_hidden_dim=32)

    def forward(self, image: torch.Tensor, points: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sparse, dense = self.prompts(points=(points, labels), boxes=None, masks=None)
        return self.masks(self.image(image), self.prompts.get_dense_pe(), sparse, dense, multimask_output=True)


model = Segmenter


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(1, 3, 64, 64), torch.rand(1, 2, 2) * 64, torch.tensor([[1, 0]])
