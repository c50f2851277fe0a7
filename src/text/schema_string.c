/* Strings: lengths, patterns and formats; and the rules that every schema stands on, in GBNF. */
#include <string.h>

#include "text/schema_parts.h"

static const char *const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "hostname", "uri"};

static uint32_t body_format(struct st_schema *s, const char *format, const char *where, uint32_t next)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(format, formats[i]) == 0)
            return st_net_call(s->net, st_schema_builtin(s, format), next);
    char shown[60];
    return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "format \"%s\" is not supported",
                         st_printable(shown, sizeof shown, format, strlen(format)));
}

/* A count that a keyword gives; false if it is missing or wrong. */
static bool read_count(struct st_schema *s, const json_t *schema, const char *name, const char *where, uint32_t *out)
{
    const json_t *value = json_object_get(schema, name);
    if (!value)
        return false;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number > ST_REPEAT_MAX || number != (double)(uint32_t)number) {
        st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "%s is not a whole number up to %d", name, ST_REPEAT_MAX);
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

bool st_schema_counts(struct st_schema *s, const json_t *schema, const char *least, const char *most, const char *where,
                      uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = ST_REPEAT_FOREVER;
    bool any = read_count(s, schema, least, where, min);
    any |= read_count(s, schema, most, where, max);
    if (*max < *min)
        st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "%s is below %s", most, least);
    return any && st_schema_good(s);
}

struct unit {
    struct st_net *net;
    uint32_t rule;
};

static uint32_t call_unit(void *user, uint32_t next)
{
    const struct unit *u = user;
    return st_net_call(u->net, u->rule, next);
}

uint32_t st_schema_string_body(struct st_schema *s, const json_t *schema, const char *where, bool raw, uint32_t next)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    uint32_t min, max;
    bool counted = st_schema_counts(s, schema, "minLength", "maxLength", where, &min, &max);
    if (!!pattern + !!format + counted > 1)
        return st_schema_bad(s, where, STRATA_E_UNSUPPORTED, "pattern, format and lengths are not supported beside each other");
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return st_schema_bad(s, where, STRATA_E_FORMAT, "pattern or format is not a string");
    if (format)
        return body_format(s, json_string_value(format), where, next);
    if (pattern)
        return st_net_call(s->net,
                           st_pattern_rule(s->net, raw ? st_raw_set : s->set, json_string_value(pattern),
                                           json_string_length(pattern), where),
                           next);
    uint32_t unit = st_schema_builtin(s, raw ? "raw" : "char");
    if (!counted)
        return st_net_call(s->net, st_schema_builtin(s, "chars"), next);
    struct unit u = {s->net, unit};
    return st_net_repeat(s->net, min, max, call_unit, &u, next);
}

/* ---- rules that every schema stands on ---- */

/* What stands for chars and string differs: between tags, "</" never occurs. */
static const char plain_rules[] = "char ::= [^\"\\\\\\x00-\\x1f] | \"\\\\\" escape\n"
                                  "chars ::= char*\n";
static const char tagged_rules[] =
    "char ::= [^\"\\\\<\\x00-\\x1f] | \"\\\\\" escape\n"
    "chars ::= (char | \"<\"+ ([^\"\\\\</\\x00-\\x1f] | \"\\\\\" escape))* \"<\"*\n";

static const char common_rules[] =
    "ws ::= \" \"? | \"\\n\" [ \\t]{0,40}\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (member (\",\" ws member)* ws)? \"}\"\n"
    "member ::= string \":\" \" \"? value\n"
    "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n"
    "string ::= \"\\\"\" chars \"\\\"\"\n"
    "escape ::= [\"\\\\/bfnrt] | \"u\" unicode\n"
    "unicode ::= [1-9a-cA-CeEfF] hex{3} | \"0\" ([1-9a-fA-F] hex{2} | \"0\" ([1-9a-fA-F] hex | \"0\" [1-9a-fA-F]))"
    " | [dD] [0-7] hex{2} | [dD] [89abAB] hex{2} \"\\\\u\" [dD] [c-fC-F] hex{2}\n"
    "hex ::= [0-9a-fA-F]\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?\n"
    "integer ::= \"0\" | \"-\"? [1-9] [0-9]{0,14}\n"
    "raw ::= [^<\\x00]\n"
    "date ::= year \"-\" ((\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") \"-\" (days28 | \"29\" | \"3\" [01])"
    " | (\"04\" | \"06\" | \"09\" | \"11\") \"-\" (days28 | \"29\" | \"30\") | \"02-\" days28) | leap \"-02-29\"\n"
    "year ::= [1-9] [0-9]{3}\n"
    "leap ::= [1-9] [0-9] (\"0\" [48] | [2468] [048] | [13579] [26])\n"
    "days28 ::= \"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]\n"
    "time ::= clock \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [-+] clock)\n"
    "clock ::= ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]\n"
    "date-time ::= date \"T\" time\n"
    "uuid ::= hex{8} (\"-\" hex{4}){3} \"-\" hex{12}\n"
    "email ::= [a-zA-Z0-9]+ ([-+._] [a-zA-Z0-9]+)* \"@\" label (\".\" label)+\n"
    "label ::= [a-zA-Z0-9]{1,20} (\"-\" [a-zA-Z0-9]{1,20}){0,2}\n"
    "hostname ::= label (\".\" label){0,3}\n"
    "ipv4 ::= octet (\".\" octet){3}\n"
    "octet ::= \"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9]{2} | [1-9]? [0-9]\n"
    "uri ::= (\"http\" \"s\"? | \"ftp\") \"://\" hostname (\":\" [1-9] [0-9]{0,3})? (\"/\" path)? (\"?\" query)? (\"#\" query)?\n"
    "path ::= ([-a-zA-Z0-9._~!$&()*+,;=:@/] | \"%\" hex{2})*\n"
    "query ::= ([-a-zA-Z0-9._~!$&()*+,;=:@/?] | \"%\" hex{2})*\n";

enum strata_result st_schema_builtins(struct st_schema *s, struct strata_error *err)
{
    const char *own = s->tagged ? tagged_rules : plain_rules;
    size_t n = strlen(own);
    memcpy(s->rules, own, n);
    memcpy(s->rules + n, common_rules, sizeof common_rules);
    return st_gbnf_read_names(s->net, s->rules, n + sizeof common_rules - 1, &s->names, err);
}

uint32_t st_schema_builtin(const struct st_schema *s, const char *name)
{
    return st_gbnf_find(s->names, name);
}
