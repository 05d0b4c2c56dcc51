"""The operators of the allow-list by family, one line per name: ``name: class flags``. The flags are

- ``v``  its result aliases its first argument (or is a plain copy of it), costs nothing and can be repeated anywhere,
- ``r``  it may draw random numbers (whether a given call draws is told by ``Op.rng``),
- ``n``  no gradient passes through it to any argument,
- ``i``  allowed in initializer programs too, ``I`` allowed only there,
- ``p``  it changes its first argument in place and returns it (initializer programs only).
"""

from __future__ import annotations

__all__ = ["ATEN", "PSEUDO"]

#: Operators of farflung itself.
PSEUDO = """
farflung.input: input n
farflung.variable: input
farflung.batch_norm: norm
farflung.cached_attention: attention n
farflung.ctc_loss: loss
farflung.gradient: elementwise
farflung.grouped_linear: gemm
farflung.grouped_mm: gemm
"""

_VIEWS = """
_conj.default: view v
alias.default: view v
broadcast_tensors.default: view
broadcast_to.default: view v
chunk.default: view vi
clone.default: view vi
contiguous.default: view v
detach.default: view vni
diagonal.default: view vi
expand.default: view vi
expand_as.default: view v
flatten.using_ints: view v
lift_fresh_copy.default: view v
movedim.int: view v
movedim.intlist: view v
narrow.default: view vi
numpy_T.default: view v
permute.default: view vi
pixel_shuffle.default: view
pixel_unshuffle.default: view
reshape.default: view vi
select.int: view vi
slice.Tensor: view vi
split.Tensor: view vi
split.sizes: view vi
split_with_sizes.default: view vi
squeeze.default: view v
squeeze.dim: view v
squeeze.dims: view v
swapaxes.default: view v
t.default: view vi
transpose.int: view vi
unbind.int: view vi
unflatten.int: view v
_unsafe_view.default: view v
unfold.default: view v
unsqueeze.default: view vi
view_as_complex.default: view v
view_as_real.default: view v
view.default: view vi
view_as.default: view v
"""

_CREATION = """
arange.default: create ni
arange.start: create ni
arange.start_step: create ni
bernoulli.default: create rni
bernoulli.p: create rni
cauchy.default: create rn
empty.memory_format: create nI
empty_like.default: create nI
exponential.default: create rn
eye.default: create ni
eye.m: create ni
full.default: create ni
full_like.default: create ni
geometric.default: create rn
linspace.default: create ni
log_normal.default: create rn
multinomial.default: create rn
new_empty.default: create nI
new_full.default: create ni
new_ones.default: create ni
new_zeros.default: create ni
normal.Tensor_Tensor: create rni
normal.Tensor_float: create rn
normal.float_Tensor: create rn
normal_functional.default: create rn
one_hot.default: create n
ones.default: create ni
ones_like.default: create ni
poisson.default: create rn
rand.default: create rni
rand_like.default: create rni
randint.default: create rni
randint.low: create rni
randn.default: create rni
randn_like.default: create rni
randperm.default: create rni
scalar_tensor.default: create ni
uniform.default: create rn
zeros.default: create ni
zeros_like.default: create ni
"""

_ELEMENTWISE = """
abs.default: elementwise i
add.Scalar: elementwise i
add.Tensor: elementwise i
addcdiv.default: elementwise
addcmul.default: elementwise
alpha_dropout.default: elementwise r
angle.default: elementwise
atan.default: elementwise
atan2.default: elementwise
asin.default: elementwise
acos.default: elementwise
bitwise_and.Tensor: elementwise n
bitwise_not.default: elementwise n
bitwise_or.Tensor: elementwise n
ceil.default: elementwise i
celu.default: elementwise
clamp.default: elementwise i
clamp.Tensor: elementwise
clamp_max.default: elementwise i
clamp_min.default: elementwise i
complex.default: elementwise
cos.default: elementwise i
cosh.default: elementwise
div.Scalar: elementwise i
div.Scalar_mode: elementwise i
div.Tensor: elementwise i
div.Tensor_mode: elementwise i
dropout.default: elementwise r
elu.default: elementwise
eq.Scalar: elementwise ni
eq.Tensor: elementwise n
erf.default: elementwise i
erfinv.default: elementwise i
exp.default: elementwise i
exp2.default: elementwise i
expm1.default: elementwise i
feature_alpha_dropout.default: elementwise r
feature_dropout.default: elementwise r
floor.default: elementwise i
floor_divide.default: elementwise ni
fmod.Scalar: elementwise
ge.Scalar: elementwise ni
ge.Tensor: elementwise n
gelu.default: elementwise
glu.default: elementwise
gt.Scalar: elementwise ni
gt.Tensor: elementwise n
hardsigmoid.default: elementwise
hardswish.default: elementwise
hardtanh.default: elementwise
isfinite.default: elementwise n
isinf.default: elementwise n
isnan.default: elementwise n
le.Scalar: elementwise ni
le.Tensor: elementwise n
leaky_relu.default: elementwise
lerp.Scalar: elementwise
lerp.Tensor: elementwise
log.default: elementwise i
log10.default: elementwise
log1p.default: elementwise i
log2.default: elementwise
log_sigmoid.default: elementwise
logical_and.default: elementwise n
logical_not.default: elementwise n
logical_or.default: elementwise n
logical_xor.default: elementwise n
lt.Scalar: elementwise ni
lt.Tensor: elementwise n
masked_fill.Scalar: elementwise i
masked_fill.Tensor: elementwise
maximum.default: elementwise
minimum.default: elementwise
mish.default: elementwise
mul.Scalar: elementwise i
mul.Tensor: elementwise i
nan_to_num.default: elementwise
ne.Scalar: elementwise ni
ne.Tensor: elementwise n
neg.default: elementwise i
polar.default: elementwise
pow.Scalar: elementwise i
pow.Tensor_Scalar: elementwise i
pow.Tensor_Tensor: elementwise
prelu.default: elementwise
reciprocal.default: elementwise i
relu.default: elementwise
relu6.default: elementwise
resolve_conj.default: view v
remainder.Scalar: elementwise i
remainder.Tensor: elementwise
round.default: elementwise i
rrelu.default: elementwise r
rsqrt.default: elementwise i
rsub.Scalar: elementwise i
selu.default: elementwise
sigmoid.default: elementwise
sign.default: elementwise i
silu.default: elementwise
sin.default: elementwise i
sinh.default: elementwise
softplus.default: elementwise
softshrink.default: elementwise
sqrt.default: elementwise i
square.default: elementwise i
sub.Scalar: elementwise i
sub.Tensor: elementwise i
tan.default: elementwise
tanh.default: elementwise
threshold.default: elementwise
to.device: elementwise i
to.dtype: elementwise i
to.dtype_layout: elementwise i
to.other: elementwise
_to_copy.default: elementwise i
tril.default: elementwise i
triu.default: elementwise i
trunc.default: elementwise i
type_as.default: elementwise
where.Scalar: elementwise
where.ScalarOther: elementwise
where.ScalarSelf: elementwise
where.self: elementwise
__and__.Tensor: elementwise n
__or__.Tensor: elementwise n
__xor__.Tensor: elementwise n
"""

_HEAVY = """
adaptive_avg_pool1d.default: pool
adaptive_avg_pool2d.default: pool
adaptive_max_pool1d.default: pool
adaptive_max_pool2d.default: pool
addbmm.default: gemm
addmm.default: gemm
addmv.default: gemm
all.default: reduction n
all.dim: reduction n
amax.default: reduction
amin.default: reduction
any.default: reduction n
any.dim: reduction n
argmax.default: reduction n
argmin.default: reduction n
argsort.default: sort n
avg_pool1d.default: pool
avg_pool2d.default: pool
baddbmm.default: gemm
batch_norm.default: norm
bilinear.default: gemm
binary_cross_entropy.default: loss
binary_cross_entropy_with_logits.default: loss
bmm.default: gemm
bucketize.Tensor: index n
cat.default: index i
col2im.default: index
constant_pad_nd.default: index i
conv1d.default: convolution
conv1d.padding: convolution
conv2d.default: convolution
conv2d.padding: convolution
conv3d.default: convolution
conv3d.padding: convolution
conv_transpose1d.default: convolution
conv_transpose2d.input: convolution
cosine_embedding_loss.default: loss
cosine_similarity.default: reduction
cross_entropy_loss.default: loss
cummax.default: reduction
cumprod.default: reduction
cumsum.default: reduction i
diff.default: reduction
dot.default: gemm
einsum.default: gemm
embedding.default: index
embedding_bag.padding_idx: index
fft_fft.default: reduction
fft_fft2.default: reduction
fft_fftn.default: reduction
fft_hfft.default: reduction
fft_ifft.default: reduction
fft_ifft2.default: reduction
fft_ifftn.default: reduction
fft_ihfft.default: reduction
fft_irfft.default: reduction
fft_irfft2.default: reduction
fft_irfftn.default: reduction
fft_rfft.default: reduction
fft_rfft2.default: reduction
fft_rfftn.default: reduction
flip.default: index
gather.default: index
grid_sampler.default: index
group_norm.default: norm
gru.input: recurrent r
hinge_embedding_loss.default: loss
histc.default: reduction n
huber_loss.default: loss
im2col.default: index
index.Tensor: index i
index_add.default: index
index_copy.default: index
index_fill.int_Scalar: index
index_put.default: index
index_select.default: index i
instance_norm.default: norm
kl_div.default: loss
kron.default: gemm i
l1_loss.default: loss
layer_norm.default: norm
linalg_solve_triangular.default: gemm
linalg_vector_norm.default: reduction i
linear.default: gemm
log_softmax.int: reduction
logsumexp.default: reduction
lstm.input: recurrent r
margin_ranking_loss.default: loss
masked_scatter.default: index
matmul.default: gemm i
max.default: reduction i
max.dim: reduction
max.other: elementwise
max_pool1d.default: pool
max_pool2d.default: pool
mean.default: reduction i
mean.dim: reduction i
min.default: reduction i
min.dim: reduction
min.other: elementwise
mm.default: gemm i
mse_loss.default: loss
mv.default: gemm
nll_loss.default: loss
nll_loss2d.default: loss
nll_loss_nd.default: loss
norm.ScalarOpt_dim: reduction
outer.default: gemm i
pad.default: index i
prod.default: reduction
prod.dim_int: reduction
reflection_pad1d.default: index
reflection_pad2d.default: index
repeat.default: index i
repeat_interleave.self_int: index i
replication_pad2d.default: index
rms_norm.default: norm
rnn_relu.input: recurrent r
rnn_tanh.input: recurrent r
roll.default: index i
rot90.default: index
scaled_dot_product_attention.default: attention r
scatter.src: index
scatter.value: index
scatter_add.default: index
scatter_reduce.two: index
select_scatter.default: index
slice_scatter.default: index
smooth_l1_loss.default: loss
soft_margin_loss.default: loss
softmax.int: reduction
_softmax_backward_data.default: reduction n
_log_softmax_backward_data.default: reduction n
_softmax.default: reduction
_log_softmax.default: reduction
sort.default: sort
stack.default: index i
std.correction: reduction i
sum.default: reduction i
sum.dim_IntList: reduction i
take_along_dim.default: index
tile.default: index i
topk.default: sort
tensordot.default: gemm
triplet_margin_loss.default: loss
upsample_bicubic2d.vec: index
upsample_bilinear2d.vec: index
upsample_nearest1d.vec: index
upsample_nearest2d.vec: index
vdot.default: gemm
var.correction: reduction i
var_mean.correction: reduction
_weight_norm.default: norm
"""

_INITIALIZERS = """
add_.Scalar: elementwise nIp
add_.Tensor: elementwise nIp
addcdiv_.default: elementwise nIp
addcmul_.default: elementwise nIp
bernoulli_.float: create nrIp
ceil_.default: elementwise nIp
clamp_.default: elementwise nIp
clamp_max_.default: elementwise nIp
clamp_min_.default: elementwise nIp
copy_.default: elementwise nIp
cos_.default: elementwise nIp
cumsum_.default: elementwise nIp
diagonal_copy.default: view nI
div_.Scalar: elementwise nIp
div_.Tensor: elementwise nIp
erfinv_.default: elementwise nIp
exp_.default: elementwise nIp
exponential_.default: create nrIp
fill_.Scalar: create nIp
fill_.Tensor: create nIp
fill_diagonal_.default: create nIp
floor_.default: elementwise nIp
geometric_.default: create nrIp
linalg_qr.default: gemm nI
lerp_.Scalar: elementwise nIp
log_.default: elementwise nIp
log_normal_.default: create nrIp
masked_fill_.Scalar: elementwise nIp
mul_.Scalar: elementwise nIp
mul_.Tensor: elementwise nIp
neg_.default: elementwise nIp
normal.float_float: create nrI
normal_.default: create nrIp
pow_.Scalar: elementwise nIp
random_.default: create nrIp
random_.from: create nrIp
random_.to: create nrIp
reciprocal_.default: elementwise nIp
round_.default: elementwise nIp
rsqrt_.default: elementwise nIp
select_copy.int: elementwise nI
sign_.default: elementwise nIp
sin_.default: elementwise nIp
sqrt_.default: elementwise nIp
sub_.Scalar: elementwise nIp
sub_.Tensor: elementwise nIp
tanh_.default: elementwise nIp
tril_.default: elementwise nIp
triu_.default: elementwise nIp
uniform_.default: create nrIp
zero_.default: create nIp
"""

#: Operators of PyTorch, without the prefix ``aten.``.
ATEN = _VIEWS + _CREATION + _ELEMENTWISE + _HEAVY + _INITIALIZERS
