/* Threads: each is a fiber that runs until it must wait for others. CTAs run one after the other;
   or, with a seed, several at once, and each access of memory may let another thread go on. */
#include "machine.h"
#include <stdlib.h>

#if !defined(__x86_64__)
#error "the switch of fibers is written for x86-64"
#endif
#define STACK_SIZE (256u << 10)
#define FUEL 200000000ull       /* backward branches of a thread */

Grid grid;
Thread *running;
int has_fault;
u32 epoch = 1, first_serial, shared_size;

static Cta ctas[MAX_CTAS];
static Thread threads[MAX_CTAS * MAX_THREADS];
static u8 *stacks;
static u64 random_state, num_ctas;
static u32 num_threads, last_serial = 1;
static void *scheduler;
static void (*kernel)(Thread *, const u64 *);
static const u64 *kernel_params;

void switch_to(void **save, void *load);
__asm__(".text\n.globl switch_to\nswitch_to:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

void let_others_run(void) { switch_to(&running->stack_pointer, scheduler); }
static void run_thread(void) {
    kernel(running, kernel_params);
    running->state = ENDED;
    let_others_run();
    abort();
}
static void resume(Thread *thread) {
    running = thread;
    switch_to(&scheduler, thread->stack_pointer);
}
void wait_for(int state, u32 mask) {
    running->state = state;
    running->mask = mask;
    let_others_run();
}

/* Return a number below the limit; without a seed, the last one. */
u32 random_below(u32 limit) {
    if (!random_state) return limit - 1;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (u32)((random_state >> 32) * limit >> 32);
}

/* Let a lane move its rows of matrices of 8 x 8 numbers of 16 bits. Of the numbers that it holds,
   the first two lie beside each other in shared memory, or, if transposed, one below the other. */
static void move_matrices(Thread *warp, u32 lane, int is_store) {
    Thread *thread = warp + lane;
    int is_transposed = thread->how & 16;
    for (u32 k = 0; k < 2 * (thread->how & 15) && !has_fault; k++) {
        u32 row = is_transposed ? lane % 4 * 2 + k % 2 : lane / 4;
        u32 column = is_transposed ? lane / 4 : lane % 4 * 2 + k % 2;
        u64 at = warp[k / 2 * 8 + row].value;
        u8 *held = (u8 *)&thread->matrices[k / 2] + 2 * (k % 2);
        if (at % 16) note_pair(thread, MISALIGNED, 0, at, 0, 0);
        else if (is_store) store_here(thread, SHARED, at + 2 * column, 2, held, PLAIN);
        else load_here(thread, SHARED, at + 2 * column, 2, held, PLAIN);
    }
}

static void shuffle(Thread *warp, Thread *thread) {
    u32 segment = thread->clamp >> 8 & 31, clamp = thread->clamp & 31, by = thread->operand & 31;
    u32 lane = thread->lane, last = (lane & segment) | (clamp & ~segment), from = lane;
    switch (thread->how) {
    case UP: from = lane - by; thread->is_there = (i32)from >= (i32)last; break;
    case DOWN: from = lane + by; thread->is_there = from <= last; break;
    case BUTTERFLY: from = lane ^ by; thread->is_there = from <= last; break;
    default: from = (lane & segment) | (by & ~segment); thread->is_there = from <= last;
    }
    if (!thread->is_there) from = lane;
    if (!(thread->mask >> from & 1)) note_pair(thread, NO_LANE, 0, from, 0, 0);
    thread->result = warp[from].value;
}

/* Let the lanes of a mask do together what all of them wait for. */
static void do_together(Thread *warp, Thread *one) {
    u32 mask = one->mask, state = one->state, ballot = 0, is_begun = 0;
    u64 reduced = 0;
    for (u32 k = 0; k < 32; k++) if (mask >> k & 1) {
        ballot |= (u32)(warp[k].value != 0) << k;
        if (state == REDUX) reduced = is_begun++ ? one->update(reduced, warp[k].value, 0) : warp[k].value;
    }
    for (u32 k = 0; k < 32 && !has_fault; k++) if (mask >> k & 1) {
        Thread *thread = warp + k;
        if (state == SHUFFLE) shuffle(warp, thread);
        else if (state == REDUX) thread->result = (u32)reduced;
        else if (state == LDMATRIX || state == STMATRIX) move_matrices(warp, k, state == STMATRIX);
        else if (thread->how == BALLOT) thread->result = ballot;
        else thread->result = thread->how == ANY ? ballot != 0
            : ballot == mask || (thread->how == UNI && !ballot);
    }
    if (state == AT_WARP_BARRIER) one->cta->warp_epoch[one->warp] = ++epoch;
    for (u32 k = 0; k < 32; k++) if (mask >> k & 1) warp[k].state = RUNNING;
}

/* Do what all lanes of a mask wait for; return whether a lane of the warp can go on. */
static int settle(Thread *warp, u32 num_lanes) {
    int has_progress = 0;
    for (u32 k = 0; k < num_lanes; k++) {
        Thread *thread = warp + k;
        u32 here = 0;
        if (thread->state >= AT_BARRIER) continue;
        if (!(thread->mask >> k & 1)) { note_pair(thread, DIVERGED, 0, thread->mask, 0, 0); return 0; }
        for (u32 j = 0; j < num_lanes; j++)
            here |= (u32)(warp[j].state == thread->state && warp[j].insn == thread->insn
                          && warp[j].mask == thread->mask) << j;
        if ((here & thread->mask) == thread->mask) { do_together(warp, thread); has_progress = 1; }
        if (has_fault) return 0;
    }
    return has_progress;
}

static void start_thread(Cta *cta, u32 k) {
    Thread *thread = cta->threads + k;
    u64 *top = (u64 *)(stacks + (u64)(thread - threads + 1) * STACK_SIZE - 64);
    *--top = 0;
    *--top = (u64)run_thread;
    for (int register_k = 0; register_k < 6; register_k++) *--top = 0;
    *thread = (Thread){.stack_pointer = top, .cta = cta, .tid = k, .lane = k % 32, .warp = k / 32,
                       .state = RUNNING, .fuel = FUEL};
}
static void start_cta(Cta *cta, u64 number) {
    cta->number = (u32)number;
    cta->is_live = 1;
    cta->ctaid[0] = number % grid.nctaid[0];
    cta->ctaid[1] = number / grid.nctaid[0] % grid.nctaid[1];
    cta->ctaid[2] = number / grid.nctaid[0] / grid.nctaid[1];
    cta->serial = first_serial + (u32)number;
    cta->epoch = ++epoch;
    for (u32 warp = 0; warp < 32; warp++) cta->warp_epoch[warp] = epoch;
    memset(cta->shared, 0xCB, shared_size);
    for (u32 k = 0; k < num_threads; k++) start_thread(cta, k);
}

static u32 lanes_of(u32 warp) { return num_threads - 32 * warp < 32 ? num_threads - 32 * warp : 32; }

/* Of threads that all have ended or wait: return whether a barrier of all let them go on. */
static int pass_barrier(Cta *cta) {
    Thread *first = cta->threads, *last = 0;
    u32 num_ended = 0, num_here = 0;
    for (u32 k = 0; k < num_threads; k++) {
        num_ended += first[k].state == ENDED;
        num_here += first[k].state == AT_BARRIER;
        if (first[k].state != ENDED) last = first + k;
    }
    if (num_ended == num_threads) {
        if (block_runs) count_cta(num_threads);
        cta->is_live = 0;
        return 0;
    }
    if (num_here < num_threads) { note_pair(last, DEADLOCK, 0, num_ended, 0, 0); return 0; }
    for (u32 k = 0; k < num_threads; k++) {
        Thread *thread = first + k, *lane_0 = first + k / 32 * 32;
        if (thread->insn != lane_0->insn) {
            note_pair(thread, DIVERGED, lane_0->insn, 0, 0, 0);
            return 0;
        }
        thread->state = RUNNING;
    }
    cta->epoch = ++epoch;
    return 1;
}

static void run_cta(Cta *cta) {
    u32 num_warps = (num_threads + 31) / 32;
    do
        for (u32 k = 0; k < num_warps; k++) {
            u32 num_lanes = lanes_of(k);
            Thread *warp = cta->threads + 32 * k;
            do
                for (u32 lane = 0; lane < num_lanes; lane++) {
                    if (warp[lane].state == RUNNING) resume(warp + lane);
                    if (has_fault) return;
                }
            while (settle(warp, num_lanes));
            if (has_fault) return;
        }
    while (pass_barrier(cta));
}

/* Run several CTAs at once, in a random order of threads. */
static void run_at_random(void) {
    u64 next = 0;
    u32 num_warps = (num_threads + 31) / 32, num_live = 0;
    for (u32 k = 0; k < MAX_CTAS && next < num_ctas; k++, num_live++) start_cta(ctas + k, next++);
    while (num_live && !has_fault) {
        Cta *cta = ctas + random_below(MAX_CTAS);
        u32 from = random_below(num_threads), k = 0;
        int has_progress = 0;
        if (!cta->is_live) continue;
        while (k < num_threads && cta->threads[(from + k) % num_threads].state != RUNNING) k++;
        if (k < num_threads) {
            Thread *thread = cta->threads + (from + k) % num_threads;
            resume(thread);
            if (!has_fault && thread->state < AT_BARRIER)
                settle(cta->threads + 32 * thread->warp, lanes_of(thread->warp));
            continue;
        }
        for (u32 warp = 0; warp < num_warps && !has_fault; warp++)
            has_progress |= settle(cta->threads + 32 * warp, lanes_of(warp));
        if (!has_progress && !has_fault) pass_barrier(cta);
        if (!cta->is_live && next < num_ctas) start_cta(cta, next++);
        else if (!cta->is_live) num_live--;
    }
}

/* Run all CTAs of a kernel; return the number of notes, which are at machine_notes().

   pairs: begin and end of each tensor. seed: not 0: several CTAs at once, threads in a random order;
   0: one after the other. */
u32 machine_launch(void (*code)(Thread *, const u64 *), const u64 *params, const u32 *size, u32 ntid,
                   u32 shared, const u64 *pairs, u32 num_pairs, u64 seed) {
    if (!stacks) {
        stacks = reserve((u64)STACK_SIZE * MAX_THREADS * MAX_CTAS);
        for (u32 k = 0; k < MAX_CTAS; k++) {
            ctas[k].shared = reserve(SHARED_SIZE);
            ctas[k].shared_bytes = new_shared_bytes();
            ctas[k].threads = threads + k * MAX_THREADS;
        }
    }
    if (ntid > MAX_THREADS || shared > SHARED_SIZE) abort();
    kernel = code;
    kernel_params = params;
    num_threads = grid.ntid = ntid;
    shared_size = shared;
    memcpy(grid.nctaid, size, sizeof grid.nctaid);
    begin_memory(pairs, num_pairs);
    forget_notes();
    first_serial = last_serial + 1;
    num_ctas = (u64)size[0] * size[1] * size[2];
    last_serial += num_ctas;
    random_state = seed;
    for (u32 k = 0; k < MAX_CTAS; k++) ctas[k].is_live = 0;
    if (seed) run_at_random();
    else
        for (u64 k = 0; k < num_ctas && !has_fault; k++) {
            start_cta(ctas, k);
            run_cta(ctas);
        }
    return number_of_notes();
}
