// One decoder layer of Llama 3 8B with embedding and LM head, in the shapes of
// that model: the input of tests of CUDA text. No test reads its weights.

module attributes {model.folder = "/models/llama"} {
model.parameter @embed : tensor<128256x4096xbf16> {file = "model.safetensors"}
model.parameter @n1 : tensor<4096xbf16> {file = "model.safetensors"}
model.parameter @n2 : tensor<4096xbf16> {file = "model.safetensors"}
model.parameter @wq : tensor<4096x4096xbf16> {file = "model.safetensors"}
model.parameter @wk : tensor<1024x4096xbf16> {file = "model.safetensors"}
model.parameter @wv : tensor<1024x4096xbf16> {file = "model.safetensors"}
model.parameter @wo : tensor<4096x4096xbf16> {file = "model.safetensors"}
model.parameter @wg : tensor<14336x4096xbf16> {file = "model.safetensors"}
model.parameter @wu : tensor<14336x4096xbf16> {file = "model.safetensors"}
model.parameter @wd : tensor<4096x14336xbf16> {file = "model.safetensors"}
model.parameter @nf : tensor<4096xbf16> {file = "model.safetensors"}
func.func @forward(
    %ids: tensor<?x?xi32> {model.input="ids"},
    %targets: tensor<?x?xi32> {model.input="targets"},
    %pos: tensor<?x?xi32> {model.input="positions"},
    %seg: tensor<?x?xi32> {model.input="segments"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
  %e = model.weight @embed : tensor<128256x4096xbf16>
  %h0 = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<128256x4096xbf16>) -> tensor<?x?x4096xf32>
  %cos, %sin = model.rope_table %pos {frequencies = array<f32:
    1.0, 0.8146172, 0.6636012, 0.540581, 0.4403666, 0.35873023, 0.29222783,
    0.23805381, 0.19392274, 0.15797281, 0.12868737, 0.10483095, 0.0853971,
    0.06956595, 0.056669623, 0.04616405, 0.03760603, 0.03063452, 0.024955409,
    0.020329107, 0.01656044, 0.01349042, 0.010989528, 0.008952259,
    0.0072926646, 0.00594073, 0.0048394212, 0.003942276, 0.003211446,
    0.0026160993, 0.0021311196, 0.0017360467, 0.0014142136, 0.0011520428,
    0.00093847385, 0.000764497, 0.00062277244, 0.00050732115, 0.00041327256,
    0.00033665894, 0.0002742482, 0.00022340729, 0.00018199143, 0.00014825336,
    0.000120769735, 9.838111e-05, 8.014295e-05, 6.528583e-05, 5.3182957e-05,
    4.3323755e-05, 3.5292276e-05, 2.8749697e-05, 2.342e-05, 1.9078334e-05,
    1.554154e-05, 1.2660406e-05, 1.0313385e-05, 8.401462e-06, 6.8439754e-06,
    5.5752203e-06, 4.5416705e-06, 3.699723e-06, 3.013858e-06, 2.4551407e-06,
    1.0, 0.8146172, 0.6636012, 0.540581, 0.4403666, 0.35873023, 0.29222783,
    0.23805381, 0.19392274, 0.15797281, 0.12868737, 0.10483095, 0.0853971,
    0.06956595, 0.056669623, 0.04616405, 0.03760603, 0.03063452, 0.024955409,
    0.020329107, 0.01656044, 0.01349042, 0.010989528, 0.008952259,
    0.0072926646, 0.00594073, 0.0048394212, 0.003942276, 0.003211446,
    0.0026160993, 0.0021311196, 0.0017360467, 0.0014142136, 0.0011520428,
    0.00093847385, 0.000764497, 0.00062277244, 0.00050732115, 0.00041327256,
    0.00033665894, 0.0002742482, 0.00022340729, 0.00018199143, 0.00014825336,
    0.000120769735, 9.838111e-05, 8.014295e-05, 6.528583e-05, 5.3182957e-05,
    4.3323755e-05, 3.5292276e-05, 2.8749697e-05, 2.342e-05, 1.9078334e-05,
    1.554154e-05, 1.2660406e-05, 1.0313385e-05, 8.401462e-06, 6.8439754e-06,
    5.5752203e-06, 4.5416705e-06, 3.699723e-06, 3.013858e-06, 2.4551407e-06>, attention_factor = 1.0 : f64} : (tensor<?x?xi32>) -> (tensor<?x?x128xf32>, tensor<?x?x128xf32>)
  %n1 = model.weight @n1 : tensor<4096xbf16>
  %x = model.rms_norm %h0, %n1 {epsilon = 1.0e-5 : f64} : (tensor<?x?x4096xf32>, tensor<4096xbf16>) -> tensor<?x?x4096xf32>
  %wq = model.weight @wq : tensor<4096x4096xbf16>
  %q = model.linear %x, %wq {module = "model.layers.0.self_attn.q_proj"} : (tensor<?x?x4096xf32>, tensor<4096x4096xbf16>) -> tensor<?x?x4096xf32>
  %wk = model.weight @wk : tensor<1024x4096xbf16>
  %k = model.linear %x, %wk {module = "model.layers.0.self_attn.k_proj"} : (tensor<?x?x4096xf32>, tensor<1024x4096xbf16>) -> tensor<?x?x1024xf32>
  %wv = model.weight @wv : tensor<1024x4096xbf16>
  %v = model.linear %x, %wv {module = "model.layers.0.self_attn.v_proj"} : (tensor<?x?x4096xf32>, tensor<1024x4096xbf16>) -> tensor<?x?x1024xf32>
  %qr = model.rope %q, %cos, %sin : (tensor<?x?x4096xf32>, tensor<?x?x128xf32>, tensor<?x?x128xf32>) -> tensor<?x?x4096xf32>
  %kr = model.rope %k, %cos, %sin : (tensor<?x?x1024xf32>, tensor<?x?x128xf32>, tensor<?x?x128xf32>) -> tensor<?x?x1024xf32>
  %o, %lse = model.attention %qr, %kr, %v, %seg {heads = 32 : i64, kv_heads = 8 : i64, head_dim = 128 : i64, window = 0 : i64, scale = 0.08838834764831845 : f64} : (tensor<?x?x4096xf32>, tensor<?x?x1024xf32>, tensor<?x?x1024xf32>, tensor<?x?xi32>) -> (tensor<?x?x4096xf32>, tensor<?x32x?xf32>)
  %wo = model.weight @wo : tensor<4096x4096xbf16>
  %a = model.linear %o, %wo {module = "model.layers.0.self_attn.o_proj"} : (tensor<?x?x4096xf32>, tensor<4096x4096xbf16>) -> tensor<?x?x4096xf32>
  %h1 = model.add %h0, %a : tensor<?x?x4096xf32>
  %n2 = model.weight @n2 : tensor<4096xbf16>
  %y = model.rms_norm %h1, %n2 {epsilon = 1.0e-5 : f64} : (tensor<?x?x4096xf32>, tensor<4096xbf16>) -> tensor<?x?x4096xf32>
  %wg = model.weight @wg : tensor<14336x4096xbf16>
  %g = model.linear %y, %wg {module = "model.layers.0.mlp.gate_proj"} : (tensor<?x?x4096xf32>, tensor<14336x4096xbf16>) -> tensor<?x?x14336xf32>
  %wu = model.weight @wu : tensor<14336x4096xbf16>
  %u = model.linear %y, %wu {module = "model.layers.0.mlp.up_proj"} : (tensor<?x?x4096xf32>, tensor<14336x4096xbf16>) -> tensor<?x?x14336xf32>
  %s = model.glu silu %g, %u : tensor<?x?x14336xf32>
  %wd = model.weight @wd : tensor<4096x14336xbf16>
  %d = model.linear %s, %wd {module = "model.layers.0.mlp.down_proj"} : (tensor<?x?x14336xf32>, tensor<4096x14336xbf16>) -> tensor<?x?x4096xf32>
  %h2 = model.add %h1, %d : tensor<?x?x4096xf32>
  %nf = model.weight @nf : tensor<4096xbf16>
  %z = model.rms_norm %h2, %nf {epsilon = 1.0e-5 : f64} : (tensor<?x?x4096xf32>, tensor<4096xbf16>) -> tensor<?x?x4096xf32>
  %loss, %count, %correct = model.head_loss %z, %e, %targets : (tensor<?x?x4096xf32>, tensor<128256x4096xbf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
  return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
}
