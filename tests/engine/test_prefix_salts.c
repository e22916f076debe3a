/* test_prefix_salts.c - who shares cached prompts with whom: nobody with another tenant, whatever salt is sent, and
 * under one tenant those who sent the same salt. */
#include "check.h"

#include "backend/toy/toy.h"
#include "engine/engine.h"

enum { VOCAB = 50, EOS = 1, PROMPT = 40, BLOCK = 8 };

/* Behind "bob\n" this has the unkeyed XXH3-128 of "alice\n": made in a minute, by Wagner's search over the 32 words of
 * its two stripes. */
static const char FORGED[] =
    "_Yj2X1bLL=9><W6l8[eB?@m]<oGGhgaD<m0mJ>mhD6[C616mts56zc4pz0lx0E3UHlE4L/THn<VSkJ^OI8ce2hj1m/]J`<FcN>_e"
    "<_53k]F>w0wa88v3bol9lf9qB;J>7W4PPB5oJJ41SSABd7F8@dK^^aFl=46M5g:76oYmfmG:8o72o7bzu1dtindt=YK:3fU/D8ZT"
    "VXch?>U`6IT6nA/RZ>S_4Q0;Ff0I4o]TdE8M8pecfikk8nrv6qxv8S>0^m0:jJbfe6@^b^3m:NT<na`ARA8c@/VXh<fYd48kklB]"
    "1y8s9q4ugnucbasu7iVPWAO0i[]I]J1eNRSKMmNaX?=>aC2dVgG<ho_>F_QXb<TY9eebasw54jg6ue6lQ1RoA^@OZok`gMR?N]IZ"
    "jo/4:A=7QK9?P3APe0bWYh?@;BFnrzzlfo5al7u62opu6;Q]bMYL>^`61_;DC@I<k/Kj0SGE>gLX:b>E`]U<neb5M?[Q2py1zku2"
    "i5nh180h2@0ZmGj08Zn`S</HIj4[=i_W8KU9m2`lIfOWLi/L1m?KHW8Ouah22wt8zv5hyyn9j=0VK/a0`1n<;W566A6kSC^JTlCU"
    "f_EOn/Ch0?9XOM8^Tnb>ewe2bk6kfzrtn7npd8Zo8LI=^Fc6TcXM9aW43/VK07IF?jm8oU=`=AT0P@;LB0>/hntegozu5glcdbnc"
    "FZZK380/42J[0^/ZRb_92g`cYb`P@BkZ_Ph_fC=>WQaWfGj/if3tac8d7icrh1fmI`RZ:>Y5GUi=lon<8KILbcOARBOgDD4M`M/n"
    "e_FWVT453SA3c2iz2b7rfquftcydLUhEbDR_WchCo9bSZ/eRbCIHZ_`cAB;V5lo0_8S9PTDM1nRT76a7hjuuue2r43xynkN3@3?O"
    "lTcXiQYM[k_?hJ=_do/YZlmSUV?MHnPLB]`T1c@Xp12x8m4eq0ma8y65T<l[=^`:IPKaTD/WXRNFKEIJhOVn4J52=ed3b`MZni?K"
    "[4N_rx4vy3h4wj0jblqx";

struct world {
    struct program *program;
    struct gyre *g;
};

static struct world world_with(int n_tenants, size_t n_adapters) {
    static const int32_t eos[] = {EOS};
    struct toy_shape shape = {.full = true, .vocab_size = VOCAB};
    struct world w = {.program = toy_program(&shape)};
    struct gyre_options o = {
        .backend = &backend_toy, .block_size = BLOCK, .n_tenants = n_tenants, .n_adapters = n_adapters};
    struct engine_model model = {w.program, 128, -1, eos, 1};
    struct error err;
    EXPECT_OK(engine_open(&o, &model, &w.g, &err), err);
    return w;
}

static struct world world_open(int n_tenants) { return world_with(n_tenants, 0); }

static void world_close(struct world w) {
    gyre_close(w.g);
    program_free(w.program);
}

/* Tokens of one and the same prompt that were there already; *token: the first of the answer, NULL: not asked for. */
static int64_t reused_with(struct world w, int32_t tenant, const char *salt, int32_t adapter, int32_t *token) {
    struct gyre_request q = gyre_request_default(w.g);
    struct gyre_error err;
    uint64_t id;
    int32_t prompt[PROMPT];
    int64_t n = -1;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 2 + (i * 7 + i / 3) % (VOCAB - 2);
    q.prompt = prompt, q.n_prompt = PROMPT, q.max_tokens = 2, q.tenant = tenant, q.cache_salt = salt;
    q.adapter = adapter;
    EXPECT_OK(gyre_submit(w.g, &q, &id, &err), err);
    while (gyre_busy(w.g)) {
        struct gyre_event e;
        if (!gyre_poll(w.g, &e, 1))
            continue;
        if (e.kind == GYRE_DONE)
            n = e.timing.n_reused;
        else if (token && e.position == PROMPT)
            *token = e.token;
    }
    return n;
}

static int64_t reused(struct world w, int32_t tenant, const char *salt) {
    return reused_with(w, tenant, salt, 0, NULL);
}

static void tenants_share_nothing(void **state) {
    (void)state;
    struct world w = world_open(3);
    static const char *const salts[] = {NULL, "", "a salt"};
    for (size_t i = 0; i < ARRAY_LEN(salts); i++)
        for (int tenant = 0; tenant < 3; tenant++) {
            EXPECT_EQ(reused(w, tenant, salts[i]), 0);
            EXPECT_EQ(reused(w, tenant, salts[i]), PROMPT - BLOCK);
        }
    world_close(w);
}

static void a_salt_cannot_be_forged(void **state) {
    (void)state;
    struct world w = world_open(1);
    char forged[sizeof FORGED + 8];
    snprintf(forged, sizeof forged, "bob\n%s", FORGED);
    EXPECT_EQ(reused(w, 0, "alice\n"), 0);
    EXPECT_EQ(reused(w, 0, forged), 0);
    EXPECT_EQ(reused(w, 0, "alice\n"), PROMPT - BLOCK);
    world_close(w);
}

/* A key is another one under another adapter. */
static void adapters_share_nothing(void **state) {
    (void)state;
    struct world w = world_with(1, 2);
    int32_t first[3], again[3];
    for (int32_t a = 0; a < 3; a++)
        EXPECT_EQ(reused_with(w, 0, NULL, a, &first[a]), 0);
    for (int32_t a = 2; a >= 0; a--) {
        EXPECT_EQ(reused_with(w, 0, NULL, a, &again[a]), PROMPT - BLOCK);
        EXPECT_EQ(again[a], first[a]);
    }
    EXPECT(first[0] != first[1] || first[0] != first[2]);
    struct gyre_request q = gyre_request_default(w.g);
    struct gyre_error err;
    uint64_t id;
    q.prompt = &(int32_t){3}, q.n_prompt = 1, q.max_tokens = 1, q.adapter = 3;
    EXPECT_EQ(gyre_submit(w.g, &q, &id, &err), GYRE_ARGUMENT);
    EXPECT(strstr(err.text, "adapter: 3 is not one of 2"));
    world_close(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_share_nothing),
        cmocka_unit_test(a_salt_cannot_be_forged),
        cmocka_unit_test(adapters_share_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
