// One decoder layer: the input of the pass tests.

module attributes {model.folder = "/models/tiny"} {
model.parameter @embed : tensor<128x64xbf16> {file = "model.safetensors"}
model.parameter @n1 : tensor<64xbf16> {file = "model.safetensors"}
model.parameter @wq : tensor<64x64xbf16> {file = "model.safetensors"}
model.parameter @wk : tensor<32x64xbf16> {file = "model.safetensors"}
model.parameter @wv : tensor<32x64xbf16> {file = "model.safetensors"}
model.parameter @wo : tensor<64x64xbf16> {file = "model.safetensors"}
model.parameter @wg : tensor<96x64xbf16> {file = "model.safetensors"}
model.parameter @wd : tensor<64x96xbf16> {file = "model.safetensors"}
func.func @forward(%ids: tensor<?x?xi32> {model.input="ids"}, %targets: tensor<?x?xi32> {model.input="targets"}, %pos: tensor<?x?xi32> {model.input="positions"}, %seg: tensor<?x?xi32> {model.input="segments"}) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>) {
 %e = model.weight @embed : tensor<128x64xbf16>
 %h0 = model.embedding %ids, %e : (tensor<?x?xi32>, tensor<128x64xbf16>) -> tensor<?x?x64xf32>
 %cos, %sin = model.rope_table %pos {frequencies = array<f32: 1.0, 0.5, 0.25, 0.125, 1.0, 0.5, 0.25, 0.125>, attention_factor = 1.0 : f64} : (tensor<?x?xi32>) -> (tensor<?x?x8xf32>, tensor<?x?x8xf32>)
 %n = model.weight @n1 : tensor<64xbf16>
 %x = model.rms_norm %h0, %n {epsilon = 1.0e-5 : f64} : (tensor<?x?x64xf32>, tensor<64xbf16>) -> tensor<?x?x64xf32>
 %wq = model.weight @wq : tensor<64x64xbf16>
 %wk = model.weight @wk : tensor<32x64xbf16>
 %wv = model.weight @wv : tensor<32x64xbf16>
 %q = model.linear %x, %wq {module = "l.0.q_proj"} : (tensor<?x?x64xf32>, tensor<64x64xbf16>) -> tensor<?x?x64xf32>
 %k = model.linear %x, %wk {module = "l.0.k_proj"} : (tensor<?x?x64xf32>, tensor<32x64xbf16>) -> tensor<?x?x32xf32>
 %v = model.linear %x, %wv {module = "l.0.v_proj"} : (tensor<?x?x64xf32>, tensor<32x64xbf16>) -> tensor<?x?x32xf32>
 %qr = model.rope %q, %cos, %sin : (tensor<?x?x64xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x64xf32>
 %kr = model.rope %k, %cos, %sin : (tensor<?x?x32xf32>, tensor<?x?x8xf32>, tensor<?x?x8xf32>) -> tensor<?x?x32xf32>
 %o, %lse = model.attention %qr, %kr, %v, %seg {heads = 8 : i64, kv_heads = 4 : i64, head_dim = 8 : i64, window = 0 : i64, scale = 0.35 : f64} : (tensor<?x?x64xf32>, tensor<?x?x32xf32>, tensor<?x?x32xf32>, tensor<?x?xi32>) -> (tensor<?x?x64xf32>, tensor<?x8x?xf32>)
 %wo = model.weight @wo : tensor<64x64xbf16>
 %a = model.linear %o, %wo {module = "l.0.o_proj"} : (tensor<?x?x64xf32>, tensor<64x64xbf16>) -> tensor<?x?x64xf32>
 %h1 = model.add %h0, %a : tensor<?x?x64xf32>
 %x1 = model.rms_norm %h1, %n {epsilon = 1.0e-5 : f64} : (tensor<?x?x64xf32>, tensor<64xbf16>) -> tensor<?x?x64xf32>
 %wg = model.weight @wg : tensor<96x64xbf16>
 %g = model.linear %x1, %wg {module = "l.0.gate"} : (tensor<?x?x64xf32>, tensor<96x64xbf16>) -> tensor<?x?x96xf32>
 %s = model.glu silu %g, %g : tensor<?x?x96xf32>
 %wd = model.weight @wd : tensor<64x96xbf16>
 %d = model.linear %s, %wd {module = "l.0.down"} : (tensor<?x?x96xf32>, tensor<64x96xbf16>) -> tensor<?x?x64xf32>
 %h2 = model.add %h1, %d : tensor<?x?x64xf32>
 %loss, %count, %correct = model.head_loss %h2, %e, %targets : (tensor<?x?x64xf32>, tensor<128x64xbf16>, tensor<?x?xi32>) -> (tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>)
 return %loss, %count, %correct : tensor<1xf32>, tensor<1xf32>, tensor<?x?xi32>
}
}
