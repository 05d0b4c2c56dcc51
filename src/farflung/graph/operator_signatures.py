"""The arguments that each operator of the allow-list takes, as PyTorch 2.13 declares them.

An entry is a list of arguments in parentheses, then the names of the operators that have these arguments. An argument is a type
and a name; ``=`` marks one that may be left out, and ``*`` begins those that only keywords set. ``graph.signatures`` explains the
types and reads the table.
"""

from __future__ import annotations

__all__ = ["SIGNATURES"]

#: Names are those of ``operator_tables.ATEN``, without the prefix ``aten.``.
SIGNATURES = """
(Tensor self)
    _conj.default abs.default acos.default alias.default all.default angle.default any.default asin.default
    atan.default bitwise_not.default ceil.default ceil_.default cos.default cos_.default cosh.default detach.default
    erf.default erfinv.default erfinv_.default exp.default exp2.default exp_.default expm1.default floor.default
    floor_.default hardsigmoid.default hardswish.default isfinite.default isinf.default isnan.default
    lift_fresh_copy.default log.default log10.default log1p.default log2.default log_.default log_sigmoid.default
    logical_not.default max.default min.default mish.default neg.default neg_.default numpy_T.default
    reciprocal.default reciprocal_.default relu.default relu6.default resolve_conj.default round.default
    round_.default rsqrt.default rsqrt_.default selu.default sigmoid.default sign.default sign_.default silu.default
    sin.default sin_.default sinh.default sqrt.default sqrt_.default square.default squeeze.default t.default
    tan.default tanh.default tanh_.default trunc.default view_as_complex.default view_as_real.default zero_.default
(Tensor[] tensors)
    broadcast_tensors.default
(Scalar self, Tensor exponent)
    pow.Scalar
(Tensor A, str mode=)
    linalg_qr.default
(Tensor abs, Tensor angle)
    polar.default
(Tensor real, Tensor imag)
    complex.default
(Tensor self, Scalar alpha=)
    celu.default
(Tensor self, Scalar exponent)
    pow.Tensor_Scalar pow_.Scalar
(Tensor self, Scalar lambd=)
    softshrink.default
(Tensor self, Scalar max)
    clamp_max.default clamp_max_.default
(Tensor self, Scalar min)
    clamp_min.default clamp_min_.default
(Tensor self, Scalar negative_slope=)
    leaky_relu.default
(Tensor self, Scalar other)
    div.Scalar div_.Scalar eq.Scalar fmod.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar mul.Scalar mul_.Scalar
    ne.Scalar remainder.Scalar
(Tensor self, Scalar value)
    fill_.Scalar
(Tensor self, Tensor exponent)
    pow.Tensor_Tensor
(Tensor self, Tensor mat2)
    bmm.default mm.default
(Tensor self, Tensor other)
    __and__.Tensor __or__.Tensor __xor__.Tensor atan2.default bitwise_and.Tensor bitwise_or.Tensor div.Tensor
    div_.Tensor eq.Tensor expand_as.default floor_divide.default ge.Tensor gt.Tensor kron.default le.Tensor
    logical_and.default logical_or.default logical_xor.default lt.Tensor matmul.default max.other maximum.default
    min.other minimum.default mul.Tensor mul_.Tensor ne.Tensor remainder.Tensor type_as.default vdot.default
    view_as.default
(Tensor self, Tensor tensor)
    dot.default
(Tensor self, Tensor value)
    fill_.Tensor
(Tensor self, Tensor vec)
    mv.default
(Tensor self, Tensor vec2)
    outer.default
(Tensor self, Tensor weight)
    prelu.default
(Tensor self, Tensor?[] indices)
    index.Tensor
(Tensor self, int diagonal=)
    tril.default tril_.default triu.default triu_.default
(Tensor self, int dim)
    cummax.default squeeze.dim unsqueeze.default
(Tensor self, int dim=)
    glu.default unbind.int
(Tensor self, int downscale_factor)
    pixel_unshuffle.default
(Tensor self, int num_classes=)
    one_hot.default
(Tensor self, int upscale_factor)
    pixel_shuffle.default
(Tensor self, int[1] output_size)
    adaptive_avg_pool1d.default adaptive_max_pool1d.default
(Tensor self, int[2] output_size)
    adaptive_avg_pool2d.default adaptive_max_pool2d.default
(Tensor self, int[2] padding)
    reflection_pad1d.default
(Tensor self, int[4] padding)
    reflection_pad2d.default replication_pad2d.default
(Tensor self, int[] dim)
    squeeze.dims
(Tensor self, int[] dims)
    flip.default permute.default tile.default
(Tensor self, int[] repeats)
    repeat.default
(Tensor self, int[] shape)
    reshape.default
(Tensor self, int[] size)
    _unsafe_view.default broadcast_to.default view.default
(Tensor[] tensors, int dim=)
    cat.default stack.default
(Tensor condition, Scalar self, Scalar other)
    where.Scalar
(Tensor condition, Scalar self, Tensor other)
    where.ScalarSelf
(Tensor condition, Tensor self, Scalar other)
    where.ScalarOther
(Tensor condition, Tensor self, Tensor other)
    where.self
(Tensor input, Tensor weight, Tensor? bias=)
    linear.default
(Tensor input, float p, bool train)
    alpha_dropout.default dropout.default feature_alpha_dropout.default feature_dropout.default
(Tensor input, int[]? output_size, float[]? scale_factors)
    upsample_nearest1d.vec upsample_nearest2d.vec
(Tensor self, *, Generator? generator=)
    bernoulli.default random_.default
(Tensor self, *, MemoryFormat memory_format=)
    contiguous.default
(Tensor self, *, MemoryFormat? memory_format=)
    clone.default
(Tensor self, *, ScalarType? dtype=)
    mean.default prod.default sum.default
(Tensor self, *, str approximate=)
    gelu.default
(Tensor self, Scalar beta=, Scalar threshold=)
    softplus.default
(Tensor self, Scalar fill_value, bool wrap=)
    fill_diagonal_.default
(Tensor self, Scalar min_val=, Scalar max_val=)
    hardtanh.default
(Tensor self, Scalar other, Scalar alpha=)
    add.Scalar add_.Scalar rsub.Scalar sub.Scalar sub_.Scalar
(Tensor self, Scalar threshold, Scalar value)
    threshold.default
(Tensor self, Scalar? min=, Scalar? max=)
    clamp.default clamp_.default
(Tensor self, Tensor end, Scalar weight)
    lerp.Scalar lerp_.Scalar
(Tensor self, Tensor end, Tensor weight)
    lerp.Tensor
(Tensor self, Tensor indices, int? dim=)
    take_along_dim.default
(Tensor self, Tensor mask, Scalar value)
    masked_fill.Scalar masked_fill_.Scalar
(Tensor self, Tensor mask, Tensor source)
    masked_scatter.default
(Tensor self, Tensor mask, Tensor value)
    masked_fill.Tensor
(Tensor self, Tensor src, bool non_blocking=)
    copy_.default
(Tensor self, Tensor target, int reduction=)
    l1_loss.default mse_loss.default soft_margin_loss.default
(Tensor self, Tensor? min=, Tensor? max=)
    clamp.Tensor
(Tensor self, int axis0, int axis1)
    swapaxes.default
(Tensor self, int chunks, int dim=)
    chunk.default
(Tensor self, int dim, ScalarType? dtype=)
    log_softmax.int softmax.int
(Tensor self, int dim, Tensor index)
    index_select.default
(Tensor self, int dim, bool half_to_float)
    _log_softmax.default _softmax.default
(Tensor self, int dim, bool keepdim=)
    all.dim any.dim max.dim min.dim
(Tensor self, int dim, int index)
    select.int select_copy.int
(Tensor self, int dim, int[] sizes)
    unflatten.int
(Tensor self, int dim0, int dim1)
    transpose.int
(Tensor self, int dim=, bool descending=)
    argsort.default sort.default
(Tensor self, int k=, int[] dims=)
    rot90.default
(Tensor self, int source, int destination)
    movedim.int
(Tensor self, int split_size, int dim=)
    split.Tensor
(Tensor self, int start_dim=, int end_dim=)
    flatten.using_ints
(Tensor self, int? dim=, bool keepdim=)
    argmax.default argmin.default
(Tensor self, int[1] dim, bool keepdim=)
    logsumexp.default
(Tensor self, int[1] dim=, bool keepdim=)
    amax.default amin.default
(Tensor self, int[1] shifts, int[1] dims=)
    roll.default
(Tensor self, int[] pad, Scalar value=)
    constant_pad_nd.default
(Tensor self, int[] source, int[] destination)
    movedim.intlist
(Tensor self, int[] split_size, int dim=)
    split.sizes
(Tensor self, int[] split_sizes, int dim=)
    split_with_sizes.default
(Tensor v, Tensor g, int dim=)
    _weight_norm.default
(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)
    _log_softmax_backward_data.default _softmax_backward_data.default
(Tensor input, int[] normalized_shape, Tensor? weight=, float? eps=)
    rms_norm.default
(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors)
    upsample_bicubic2d.vec upsample_bilinear2d.vec
(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=)
    bilinear.default
(Tensor mean, Tensor std, *, Generator? generator=)
    normal.Tensor_Tensor
(Tensor self, Scalar alpha=, Scalar scale=, Scalar input_scale=)
    elu.default
(Tensor self, Scalar other, *, str? rounding_mode)
    div.Scalar_mode
(Tensor self, Scalar? p, int[1] dim, bool keepdim=)
    norm.ScalarOpt_dim
(Tensor self, Tensor other, *, Scalar alpha=)
    add.Tensor add_.Tensor sub.Tensor sub_.Tensor
(Tensor self, Tensor other, *, str? rounding_mode)
    div.Tensor_mode
(Tensor self, Tensor other, int[] dims_self, int[] dims_other)
    tensordot.default
(Tensor self, Tensor src, int dim, int index)
    select_scatter.default
(Tensor self, Tensor target, Tensor? weight=, int reduction=)
    binary_cross_entropy.default
(Tensor self, Tensor target, float margin=, int reduction=)
    hinge_embedding_loss.default
(Tensor self, Tensor target, int reduction=, float beta=)
    smooth_l1_loss.default
(Tensor self, Tensor target, int reduction=, float delta=)
    huber_loss.default
(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=)
    index_put.default
(Tensor self, float lambd=, *, Generator? generator=)
    exponential.default exponential_.default
(Tensor self, float p, *, Generator? generator=)
    bernoulli.p geometric.default geometric_.default
(Tensor self, float p=, *, Generator? generator=)
    bernoulli_.float
(Tensor self, float? nan=, float? posinf=, float? neginf=)
    nan_to_num.default
(Tensor self, int bins=, Scalar min=, Scalar max=)
    histc.default
(Tensor self, int dim, *, ScalarType? dtype=)
    cumprod.default cumsum.default cumsum_.default
(Tensor self, int dim, Tensor index, Scalar value)
    index_fill.int_Scalar scatter.value
(Tensor self, int dim, Tensor index, Tensor source)
    index_copy.default
(Tensor self, int dim, Tensor index, Tensor src)
    scatter.src scatter_add.default
(Tensor self, int dim, int start, int length)
    narrow.default
(Tensor self, int dimension, int size, int step)
    unfold.default
(Tensor self, int offset=, int dim1=, int dim2=)
    diagonal.default diagonal_copy.default
(Tensor self, int to, *, Generator? generator=)
    random_.to
(Tensor self, int? n=, int dim=, str? norm=)
    fft_fft.default fft_hfft.default fft_ifft.default fft_ihfft.default fft_irfft.default fft_rfft.default
(Tensor self, int[1]? s=, int[1] dim=, str? norm=)
    fft_fft2.default fft_ifft2.default fft_irfft2.default fft_rfft2.default
(Tensor self, int[1]? s=, int[1]? dim=, str? norm=)
    fft_fftn.default fft_ifftn.default fft_irfftn.default fft_rfftn.default
(Tensor self, int[] pad, str mode=, float? value=)
    pad.default
(Tensor self, int[] size, *, bool implicit=)
    expand.default
(Tensor x1, Tensor x2, int dim=, float eps=)
    cosine_similarity.default
(str equation, Tensor[] tensors, *, int[]? path=)
    einsum.default
(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners)
    grid_sampler.default
(Tensor input1, Tensor input2, Tensor target, float margin=, int reduction=)
    cosine_embedding_loss.default margin_ranking_loss.default
(Tensor self, Scalar lower=, Scalar upper=, bool training=, Generator? generator=)
    rrelu.default
(Tensor self, ScalarType dtype, bool non_blocking=, bool copy=, MemoryFormat? memory_format=)
    to.dtype
(Tensor self, Tensor boundaries, *, bool out_int32=, bool right=)
    bucketize.Tensor
(Tensor self, Tensor other, bool non_blocking=, bool copy=, MemoryFormat? memory_format=)
    to.other
(Tensor self, Tensor target, Tensor? weight=, Tensor? pos_weight=, int reduction=)
    binary_cross_entropy_with_logits.default
(Tensor self, Tensor target, Tensor? weight=, int reduction=, int ignore_index=)
    nll_loss.default nll_loss2d.default nll_loss_nd.default
(Tensor self, Tensor target, int reduction=, *, bool log_target=)
    kl_div.default
(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=)
    addcdiv.default addcdiv_.default addcmul.default addcmul_.default
(Tensor self, float median=, float sigma=, *, Generator? generator=)
    cauchy.default
(Tensor self, int num_samples, bool replacement=, *, Generator? generator=)
    multinomial.default
(Tensor mean, float std=, *, Generator? generator=)
    normal.Tensor_float
(float mean, Tensor std, *, Generator? generator=)
    normal.float_Tensor
(Tensor self, Generator? generator=)
    poisson.default
(Tensor self, float from=, float to=, *, Generator? generator=)
    uniform.default uniform_.default
(Tensor self, float mean=, float std=, *, Generator? generator=)
    log_normal.default log_normal_.default normal_.default normal_functional.default
(Tensor self, int dim, Tensor index, *, bool sparse_grad=)
    gather.default
(Tensor self, int dim, bool keepdim=, *, ScalarType? dtype=)
    prod.dim_int
(Tensor self, int dim=, int? start=, int? end=, int step=)
    slice.Tensor
(Tensor self, int from, int? to, *, Generator? generator=)
    random_.from
(Tensor self, int k, int dim=, bool largest=, bool sorted=)
    topk.default
(Tensor self, int n=, int dim=, Tensor? prepend=, Tensor? append=)
    diff.default
(Tensor self, int repeats, int? dim=, *, int? output_size=)
    repeat_interleave.self_int
(Tensor self, int[1]? dim, bool keepdim=, *, ScalarType? dtype=)
    mean.dim sum.dim_IntList
(Tensor self, int[1]? dim=, *, Scalar? correction=, bool keepdim=)
    std.correction var.correction var_mean.correction
(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride)
    im2col.default
(Tensor weight, Tensor indices, int padding_idx=, bool scale_grad_by_freq=, bool sparse=)
    embedding.default
(Scalar end, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    arange.default
(Scalar s, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    scalar_tensor.default
(Tensor input, int num_groups, Tensor? weight=, Tensor? bias=, float eps=, bool cudnn_enabled=)
    group_norm.default
(Tensor input, int[] normalized_shape, Tensor? weight=, Tensor? bias=, float eps=, bool cudnn_enable=)
    layer_norm.default
(Tensor self, Device device, ScalarType dtype, bool non_blocking=, bool copy=, MemoryFormat? memory_format=)
    to.device
(Tensor self, Scalar ord=, int[1]? dim=, bool keepdim=, *, ScalarType? dtype=)
    linalg_vector_norm.default
(Tensor self, Tensor B, *, bool upper, bool left=, bool unitriangular=)
    linalg_solve_triangular.default
(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=, Scalar alpha=)
    addbmm.default baddbmm.default
(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=, Scalar alpha=)
    addmv.default
(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=, Scalar alpha=)
    addmm.default
(Tensor self, Tensor src, int dim=, int? start=, int? end=, int step=)
    slice_scatter.default
(Tensor self, Tensor target, Tensor? weight=, int reduction=, int ignore_index=, float label_smoothing=)
    cross_entropy_loss.default
(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=)
    index_add.default
(Tensor self, int[1] kernel_size, int[1] stride=, int[1] padding=, bool ceil_mode=, bool count_include_pad=)
    avg_pool1d.default
(Tensor self, int[1] kernel_size, int[1] stride=, int[1] padding=, int[1] dilation=, bool ceil_mode=)
    max_pool1d.default
(Tensor self, int[2] kernel_size, int[2] stride=, int[2] padding=, int[2] dilation=, bool ceil_mode=)
    max_pool2d.default
(Tensor self, int[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride)
    col2im.default
(int n, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    eye.default randperm.default
(int[] size, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    ones.default rand.default randn.default zeros.default
(Scalar start, Scalar end, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    arange.start
(Tensor input, Tensor weight, Tensor? bias=, int[1] stride=, int[1] padding=, int[1] dilation=, int groups=)
    conv1d.default
(Tensor input, Tensor weight, Tensor? bias=, int[1] stride=, str padding=, int[1] dilation=, int groups=)
    conv1d.padding
(Tensor input, Tensor weight, Tensor? bias=, int[2] stride=, int[2] padding=, int[2] dilation=, int groups=)
    conv2d.default
(Tensor input, Tensor weight, Tensor? bias=, int[2] stride=, str padding=, int[2] dilation=, int groups=)
    conv2d.padding
(Tensor input, Tensor weight, Tensor? bias=, int[3] stride=, int[3] padding=, int[3] dilation=, int groups=)
    conv3d.default
(Tensor input, Tensor weight, Tensor? bias=, int[3] stride=, str padding=, int[3] dilation=, int groups=)
    conv3d.padding
(Tensor self, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=, MemoryFormat?
 memory_format=)
    empty_like.default ones_like.default rand_like.default randn_like.default zeros_like.default
(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=)
    scatter_reduce.two
(Tensor self, int[2] kernel_size, int[2] stride=, int[2] padding=, bool ceil_mode=, bool count_include_pad=, int?
 divisor_override=)
    avg_pool2d.default
(Tensor self, int[] size, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    new_empty.default new_ones.default new_zeros.default
(int high, int[] size, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    randint.default
(int n, int m, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    eye.m
(int[] size, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=, MemoryFormat? memory_format=)
    empty.memory_format
(int[] size, Scalar fill_value, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    full.default
(Scalar start, Scalar end, Scalar step=, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    arange.start_step
(Scalar start, Scalar end, int steps, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    linspace.default
(Tensor anchor, Tensor positive, Tensor negative, float margin=, float p=, float eps=, bool swap=, int reduction=)
    triplet_margin_loss.default
(Tensor input, Tensor weight, Tensor? bias=, int[1] stride=, int[1] padding=, int[1] output_padding=, int groups=,
 int[1] dilation=)
    conv_transpose1d.default
(Tensor input, Tensor weight, Tensor? bias=, int[2] stride=, int[2] padding=, int[2] output_padding=, int groups=,
 int[2] dilation=)
    conv_transpose2d.input
(Tensor self, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=, bool non_blocking=,
 MemoryFormat? memory_format=)
    _to_copy.default
(Tensor self, Scalar fill_value, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=,
 MemoryFormat? memory_format=)
    full_like.default
(Tensor self, int[] size, Scalar fill_value, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool?
 pin_memory=)
    new_full.default
(int low, int high, int[] size, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=)
    randint.low
(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool
 bidirectional, bool batch_first)
    gru.input rnn_relu.input rnn_tanh.input
(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum,
 float eps, bool cudnn_enabled)
    batch_norm.default
(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float
 momentum, float eps, bool cudnn_enabled)
    instance_norm.default
(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool
 bidirectional, bool batch_first)
    lstm.input
(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=, float dropout_p=, bool is_causal=, *, float? scale=, bool
 enable_gqa=)
    scaled_dot_product_attention.default
(Tensor self, *, ScalarType? dtype=, Layout? layout=, Device? device=, bool? pin_memory=, bool non_blocking=, bool
 copy=, MemoryFormat? memory_format=)
    to.dtype_layout
(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor?
 per_sample_weights, bool include_last_offset, int? padding_idx)
    embedding_bag.padding_idx
(float mean, float std, int[] size, *, Generator? generator=, ScalarType? dtype=, Layout? layout=, Device? device=,
 bool? pin_memory=)
    normal.float_float
"""
