/* l_media.h - the pictures of a prompt as a script writes them: { media = {item, …}, positions =
 * {t, h, w}, rope_delta = n }, each optional. */
#ifndef PE_L_MEDIA_H
#define PE_L_MEDIA_H

#include "lua/bind.h"
#include "runtime/cache/media.h"
#include "runtime/graph/plan.h"

/* [... table at arg] -> [..., lists]: gives a pe_media, or NULL if the table has none of the keys.
 * A wrong type raises; numbers that disagree with the prompt or the model are an error. Raises
 * nothing after it has opened the pe_media. */
pe_status pe_l_media(lua_State *L, int arg, const pe_plan *plan, const int32_t *prompt,
                     int32_t tokens, pe_media **out, pe_error *err);

#endif
