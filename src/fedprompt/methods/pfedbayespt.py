"""pFedBayesPT (Ye et al., CIKM 2025): a prompt for each single image, drawn from a learned semi-implicit posterior.

For an image x with frozen tokens F (paper, sec. 4):

1. draw binary masks over the tokens and encode the masked tokens: psi = (mean, std), eq. sample_mask to
   mu_sigma_generation_2; so psi is itself random, and the posterior of the prompt is a mixture without closed form;
2. draw the prompt p = mean + std * noise, eq. sampling, and set it beside a global prompt that all images share;
3. maximise the bound of eq. final_objective with J own and S extra draws of psi, see :mod:`fedprompt.bayes.objective`;
4. at test, average the *probabilities* of V mask draws with p = mean, eq. test_argmax.

The paper leaves open how the KL term is scaled, how things start and where the head lives; each is a setting.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from fedprompt.backbone.cache import Batch, Needs
from fedprompt.backbone.prompt_start import PromptStart, initial_prompt
from fedprompt.backbone.vit import Prompt
from fedprompt.bayes import encoder, objective
from fedprompt.methods.base import Context, Method, Tensors


class PFedBayesPT(Method):
    """Instance-wise prompts from a semi-implicit posterior, beside a global prompt; the encoder is shared."""

    key = "pfedbayespt"
    title = "pFedBayesPT"
    paper = "Ye et al., 2025"
    rank = 70

    class Settings(Method.Settings):
        """Settings of pFedBayesPT; the paper's symbols in brackets."""

        head: Literal["local", "global", "local_plus_mean"] = "local_plus_mean"
        length: NonNegativeInt = Field(10, description="global prompt tokens per layer (K); 0 for none")
        instance_length: PositiveInt = Field(1, description="instance prompt tokens per layer (nu)")
        global_depth: PositiveInt | None = Field(None, description="layers with global prompts; by default all")
        instance_depth: PositiveInt | None = Field(None, description="layers with instance prompts; by default all")
        beyond: Literal["flow", "drop"] = Field("flow", description="what the last prompts do in deeper layers")
        prompt_start: PromptStart = Field("blank", description="of the global prompt: uniform (VPT), blank or tokens")

        encoder_learning_rate: PositiveFloat = Field(0.01, description="of the encoder (rho)")
        norm_learning_rate: PositiveFloat | None = Field(
            None,
            description="of gain and bias of the encoder's LayerNorm, numbers of each channel as in a prompt; "
            "by default the encoder's",
        )
        encoder_start: encoder.Start = Field("pooled", description="random, or pooled: the mean of the tokens")
        hidden: PositiveInt = Field(16, ge=2, description="hidden units of the encoder's MLPs")
        activation: encoder.Activation = "gelu"
        std_sees: Literal["masked", "whole"] = Field("masked", description="what the std network reads (paper: masked)")

        noise: bool = Field(True, description="a std around the mean; without, masks alone make a prompt random")
        keep: float = Field(0.9, gt=0, le=1, description="probability that a token is kept (pi)")
        draws: PositiveInt = Field(1, description="own draws of psi and prompt in the bound (J)")
        extra_draws: NonNegativeInt = Field(1, description="extra draws of psi in the bound (S)")
        samples: PositiveInt = Field(5, description="mask draws at test (V)")
        sample_noise: bool = Field(False, description="draw the prompt's noise at test too; the paper takes the mean")
        stop_early: float | None = Field(
            None,
            ge=0,
            le=1,
            description="stop drawing for an image whose leading class stays ahead even if every draw left is against "
            "it by so much; 1 never changes a class, less is faster and may; by default all draws are made",
        )
        rows: PositiveInt = Field(64, description="images times draws in one forward at test; more is slower on CPUs")

        prior: Literal["standard", "conditional"] = Field(
            "standard", description="N(0, prior_std^2), or centred on the mean that the whole image gives"
        )
        prior_std: PositiveFloat = 1.0
        kl_weight: NonNegativeFloat = Field(0.01, description="of (log prior - log posterior) in the bound")
        kl_reduction: Literal["mean", "sum"] = Field("mean", description="over the prompt's dimensions; sum is exact")
        kl_warmup_rounds: NonNegativeInt = Field(0, description="rounds over which the weight grows from 0")
        log_variance_start: float = Field(-3.0, description="of the posterior; 0 is the literal reading")

    settings: Settings

    # What there is

    @property
    def global_depth(self) -> int:
        return min(self.settings.global_depth or self.vit.shape.depth, self.vit.shape.depth)

    @property
    def instance_depth(self) -> int:
        return min(self.settings.instance_depth or self.vit.shape.depth, self.vit.shape.depth)

    @property
    def needs(self) -> Needs:
        return Needs(layers=self.instance_depth)

    @property
    def gaussian(self) -> bool:
        """Whether a prompt has noise around its mean."""
        return self.settings.noise

    @property
    def masked(self) -> bool:
        """Whether the encoder sees masked tokens, so that psi is random."""
        return True

    def shared(self, generator: torch.Generator) -> Tensors:
        settings, shape = self.settings, self.vit.shape
        tensors = encoder.initial_encoder(
            self.instance_depth,
            shape.tokens,
            shape.width,
            hidden=settings.hidden,
            length=settings.instance_length,
            start=settings.encoder_start,
            log_variance=settings.log_variance_start,
            with_std=self.gaussian,
            generator=generator,
        )
        if settings.length:
            tensors["prompt"] = initial_prompt(
                self.task.backbone, settings.prompt_start, self.global_depth, settings.length, generator
            )
        return tensors

    def learning_rate(self, name: str) -> float:
        if name.startswith(encoder.NORM):
            return self.settings.norm_learning_rate or self.settings.encoder_learning_rate
        if name.startswith(encoder.PREFIX):
            return self.settings.encoder_learning_rate
        return super().learning_rate(name)

    def step_limit(self, name: str) -> float | None:
        """The encoder's gain is a number for each channel too, and one that runs away takes the prompt with it."""
        return super().step_limit("prompt" if name == encoder.NORM + "weight" else name)

    # The prompt of an image

    def masks(self, draws: int, batch: Batch, generator: torch.Generator) -> Tensor | None:
        """Binary masks over the tokens of each image (draws, batch, layers, tokens), or None for the whole image."""
        if not self.masked:
            return None
        shape = (draws, len(batch), self.instance_depth, self.vit.shape.tokens)
        return encoder.sample_masks(*shape, keep=self.settings.keep, generator=generator).to(self.device)

    def posterior(self, params: Tensors, batch: Batch, masks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """psi for each draw: mean and log-std (draws, batch, layers, length, width)."""
        assert batch.features is not None
        settings = self.settings
        mask_std = settings.std_sees == "masked"
        return encoder.encode(params, batch.features, masks, activation=settings.activation, mask_std=mask_std)

    def log_likelihoods(self, params: Tensors, batch: Batch, prompts: Tensor) -> Tensor:
        """log p(class | prompt, image) (draws, batch, classes) for instance prompts (draws, batch, layers, ...)."""
        assert batch.embedded is not None
        draws = len(prompts)
        flows = self.settings.beyond == "flow"
        embedded = batch.embedded.repeat(draws, 1, 1)  # (draws * batch, tokens, width)
        inserted = [Prompt(prompts.flatten(0, 1).transpose(0, 1), flows=flows)]
        if self.settings.length:
            inserted.append(Prompt(params["prompt"], flows=flows))
        feature = self.vit.prompted(embedded, inserted)
        logits = F.linear(feature, params["head.weight"], params["head.bias"])
        return logits.float().log_softmax(-1).view(draws, len(batch), -1)

    # Training

    def loss(self, params: Tensors, batch: Batch, context: Context) -> Tensor:
        settings, own = self.settings, self.settings.draws
        extra = settings.extra_draws if self.masked and self.gaussian else 0
        mean, log_std = self.posterior(params, batch, self.masks(own + extra, batch, context.generator))
        if log_std is None:
            return self._without_noise(params, batch, mean, context)
        if mean.shape[0] == 1:  # the whole image: psi is the same for each own draw
            mean, log_std = (psi.expand(own, *psi.shape[1:]) for psi in (mean, log_std))
        noise = torch.randn(mean[:own].shape, generator=context.generator).to(self.device)
        prompts = mean[:own] + log_std[:own].exp() * noise  # eq. sampling
        scores = self.log_likelihoods(params, batch, prompts)
        log_likelihood = scores.gather(-1, batch.labels.expand(own, -1).unsqueeze(-1)).squeeze(-1)  # (draws, batch)

        centre = self._prior_mean(params, batch)
        densities = objective.densities(
            prompts - centre,
            mean[:own] - centre,
            log_std[:own],
            mean[own:] - centre,
            log_std[own:],
            prior_std=settings.prior_std,
        )
        dimensions = prompts[0, 0].numel()
        bound = objective.bound(log_likelihood, densities, kl_weight=self._kl_weight(context.round, dimensions))
        with torch.no_grad():
            context.log("cross_entropy", -log_likelihood.mean())
            context.log("kl_per_dimension", (densities.log_omega - densities.log_prior).mean() / dimensions)
            context.log("mixture_gap", objective.mixture_gap(densities).mean())
            context.log("mean_rms", mean.square().mean().sqrt())
            context.log("std_mean", log_std.exp().mean())
            if len(mean) > 1:
                context.log("mask_shift", (mean[0] - mean[-1]).square().mean().sqrt())
        return -bound.mean()

    def _without_noise(self, params: Tensors, batch: Batch, mean: Tensor, context: Context) -> Tensor:
        """Plain cross-entropy: given its mask a prompt is a point, and there is no density to weigh."""
        scores = self.log_likelihoods(params, batch, mean)
        cross_entropy = F.nll_loss(scores.flatten(0, 1), batch.labels.repeat(len(scores)))
        context.log("cross_entropy", cross_entropy)
        context.log("mean_rms", mean.detach().square().mean().sqrt())
        return cross_entropy

    def _prior_mean(self, params: Tensors, batch: Batch) -> Tensor:
        if self.settings.prior == "standard":
            return torch.zeros((), device=self.device)
        with torch.no_grad():
            return self.posterior(params, batch, None)[0]

    def _kl_weight(self, round_number: int, dimensions: int) -> float:
        settings = self.settings
        warmup = settings.kl_warmup_rounds
        weight = settings.kl_weight * (min(1.0, round_number / warmup) if warmup else 1.0)
        return weight / dimensions if settings.kl_reduction == "mean" else weight

    # Prediction

    def predict(self, params: Tensors, batch: Batch, generator: torch.Generator) -> Tensor:
        settings = self.settings
        random = self.masked or (self.gaussian and settings.sample_noise)
        samples = settings.samples if random else 1
        # All draws are made here, whichever are used: so an image's first draws are the same however many follow.
        masks = self.masks(samples, batch, generator)
        noise = self._test_noise(samples, batch, generator)
        if settings.stop_early is not None:
            return self._until_settled(params, batch, masks, noise, samples, settings.stop_early)
        together = max(1, settings.rows // len(batch))
        return torch.cat(
            [
                self._probabilities(params, batch, masks, noise, slice(first, first + together), samples)
                for first in range(0, samples, together)
            ]
        )

    def _test_noise(self, samples: int, batch: Batch, generator: torch.Generator) -> Tensor | None:
        if not (self.gaussian and self.settings.sample_noise):
            return None
        layout = (samples, len(batch), self.instance_depth, self.settings.instance_length, self.vit.shape.width)
        return torch.randn(layout, generator=generator).to(self.device)

    def _probabilities(
        self, params: Tensors, batch: Batch, masks: Tensor | None, noise: Tensor | None, draws: slice, samples: int
    ) -> Tensor:
        """Class probabilities (draws, batch, classes) for some of the draws."""
        mean, log_std = self.posterior(params, batch, None if masks is None else masks[draws])
        count = len(range(*draws.indices(samples)))
        mean = mean.expand(count, *mean.shape[1:])
        if noise is not None and log_std is not None:
            mean = mean + log_std.exp() * noise[draws]
        return self.log_likelihoods(params, batch, mean).exp()

    def _until_settled(
        self,
        params: Tensors,
        batch: Batch,
        masks: Tensor | None,
        noise: Tensor | None,
        samples: int,
        against: float,
    ) -> Tensor:
        """One draw after another, each for the images whose leading class could still change; NaN for those not made.

        An image is settled when its leader would stay ahead even if the runner-up gained ``against`` on it in every
        draw that is left.
        """
        drawn = torch.full((samples, len(batch), self.task.classes), torch.nan, device=self.device)
        open_ = torch.arange(len(batch), device=self.device)
        for draw in range(samples):
            part = batch.at(open_)
            own_masks = None if masks is None else masks[draw : draw + 1, open_]
            own_noise = None if noise is None else noise[draw : draw + 1, open_]
            drawn[draw, open_] = self._probabilities(params, part, own_masks, own_noise, slice(0, 1), 1)[0]
            best = drawn[: draw + 1, open_].sum(0).topk(min(2, self.task.classes)).values  # (open, 2)
            margin = best[:, 0] - best[:, -1] if self.task.classes > 1 else torch.full_like(best[:, 0], torch.inf)
            open_ = open_[margin <= against * (samples - draw - 1)]
            if not len(open_):
                break
        return drawn
