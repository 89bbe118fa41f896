-- recurrent: parts of recurrent layers that several architectures share.
local recurrent = {}

--- Mamba 2. m: its module. o: heads, dim, groups (of heads that share B and C), state, norm_groups
--- (of the gated norm), time_step.
function recurrent.mamba2(g, h, m, o)
  local inner, shared = o.heads * o.dim, o.groups * o.state
  local gate, xbc, dt = g:split(g:linear(h, m "in_proj"), { inner, inner + 2 * shared, o.heads })
  xbc = g:conv(xbc, m "conv1d", { activation = "silu" })
  local x, b, c = g:split(xbc, { inner, shared, shared })
  local y = g:ssm {
    x = g:heads(x, o.heads), b = g:heads(b, o.groups), c = g:heads(c, o.groups), dt = dt,
    a_log = m "A_log", dt_bias = m "dt_bias", d = m "D",
    dt_min = o.time_step.min, dt_max = o.time_step.max,
  }
  y = g:rms_norm(y * g:silu(gate), m "norm", { width = inner // o.norm_groups })
  return g:linear(y, m "out_proj")
end

--- The factor by which the state of a delta rule decays, per head or per channel.
function recurrent.decay(g, a, m)
  return g:exp(-g:exp(m "A_log") * g:softplus(a + m "dt_bias"))
end

return recurrent
