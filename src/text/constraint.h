/* Constraints of answers: what strata_constraint_options (strata.h) ask for as one grammar.
 *
 * The grammar covers the whole text of an answer. Where the prompt ends inside a think block, or the model may open one by itself,
 * the answer may first be anything up to "</think>" and the line breaks behind it; what is asked for comes then. Calls are written
 * in the form that the model's template shows (toolcall.h has both), one in each line:
 *     <tool_call>                                       <tool_call>
 *     <function=NAME>                                   {"name": "NAME", "arguments": {...}}
 *     <parameter=ARG>                                   </tool_call>
 *     VALUE
 *     </parameter>
 *     </function>
 *     </tool_call>
 * with the parameters in the order of the tool's schema. */
#ifndef ST_TEXT_CONSTRAINT_H
#define ST_TEXT_CONSTRAINT_H

#include "text/matcher.h"

struct strata_constraint {
    struct st_grammar *grammar;
    const struct st_trie *trie;
    struct strata_constraint_options source; /* what it was made from, so that another process can make it too; own copies. Of the
                                              * prompt, the end that says whether there is thinking */
};

/* template_text: of the model, NULL for plain ChatML. trie must outlive the constraint. Errors as strata_constraint_create. */
enum strata_result st_constraint_create(const struct strata_constraint_options *options, const char *template_text,
                                        const struct st_trie *trie, struct strata_constraint **out, struct strata_error *err);
/* A matcher for one answer, behind what is there already. */
enum strata_result st_constraint_begin(const struct strata_constraint *c, size_t vocabulary, struct st_matcher **out,
                                       struct strata_error *err);

#endif
