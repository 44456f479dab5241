/* The event loop in C. It uses Python's stable ABI, so that one build serves every Python from 3.11 on.
 *
 * Ranks and streams are executed by the same functions as in `loop.py`, which explains them: a change of one is a change of both.
 * Tasks that use links, or take SMs or memory bandwidth from computation, run here; `loop.py` leaves them to SimPy's fabric
 * (`fabric.py`, `slowing.py`), which gives the same times event by event. The tests compare all three.
 *
 * A task that uses links sleeps until its end on an idle fabric. When a task begins with which it could overfill a link, both wake:
 * each continues from the half segment that it has reached (the computation before a flow, or the flow) event by event, its bytes
 * at max-min fair rates, until its links have enough capacity again. In the queue, at one time, tasks that end come first, then
 * tasks that begin, then `solve`.
 *
 * The step of a job that has the links to itself is first tried without the queue, as most steps overfill no link: each task ends
 * when it would on an idle fabric, and each link notes its uses. If uses that overlap could overfill a link, the step begins again
 * with the queue, and so do all later steps of the job: a trial that fails late takes about 0.6 times as long as the queue.
 * Example: of uses of 0.6 of a link from 0 to 2 s and of 0.4 from 1 to 3 s, a third of 0.1 from 2 to 4 s meets only the second, and
 * all fit; from 1.9 s on it meets both, and the step begins again.
 *
 * Numbers of events, tasks, waits and links are those of `engine/shape.py` and `engine/times.py`. A waiter is an event, or a rank
 * plus the number of events; ready[] holds events, and ranks as -1 - rank. Tasks whose end depends on others come from a pool. A
 * trial allocates 32 bytes for each link of each event, and frees them at its end. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { RUN, JOIN, LAUNCH, BUSY, DRAIN };                  /* operations of tasks (shape.py) */
enum { TRYING, OVERFULL, QUEUED };                        /* trial of a step without the queue (try_step) */
enum { MESSAGE, STREAM, OWN };                            /* kinds of waits (shape.py) */
enum { BEGIN, OVER, END, LANDED, MOVE, LAND, FIRST, LAST }; /* what a task in the queue waits for: its `call` */
/* BEGIN: its start. OVER: its end, asleep. END: the end of its half segment, awake. LANDED: the end of a flow that moves no bytes over
 * links. MOVE: the end of a flow's latency. LAND: the arrival of all its bytes. FIRST, LAST: the begin and the end of a job's step. */

#define LATER ((int64_t)1 << 56) /* more than the number of events */
#define FITS (1 + 1e-9)
#define NEARLY 1e-9 /* relative error that a difference of sums may have */
#define SAME 1e-12 /* relative change of a rate that is due to rounding */
#define NEARLY_FULL 0.98
#define MOST (1 - 1.0 / 128)
#define LEAST 1e-14
#define HOST_STREAM 1
#define CHECK 65536 /* events, or ranks and tasks that continue, between two looks for an interruption */
#define NEAR 256 /* uses of a link that are compared with a new one; where more may overlap, the queue is faster */

typedef struct Running Running;
typedef struct Job Job;

typedef struct { Running *task; double weight; int32_t place; } Crossing; /* a flow on a link; place: index of the link in its task */

typedef struct Row { /* one link of a task */
    Running *task;
    struct Row *next, *last;
    int32_t link, at; /* at: index of the task's flow in the link's `crossing` */
} Row;

typedef struct { double begin, end, until, share; } Use; /* of a link by one task; until: latest end of this use and all before it */

typedef struct {
    double limit, reserved, used, free, total;
    Row *held;
    Crossing *crossing;
    Use *use; /* in the order of their begins */
    int32_t count, left;
    int64_t seen, room, uses, uses_room;
    char full, changed;
} Link;

typedef struct Loss { /* computation of a task on a rank, which makes up for its losses there after its end */
    Running *task;
    int32_t rank;
    double other, memory, before, before_bound, left, end;
    struct Loss *next, *last;
    char late;
} Loss;

typedef struct { double sms, memory, taken, taken_bound, lost, lost_bound, since; Loss *late; } RankState;

typedef struct { int32_t rank; double sms, memory; } Take;

struct Running {
    Job *job;
    int64_t order, seen, ends_room, takes_room, losses_room;
    double time, started, begun, rate, tried, left, since, lands, bound;
    int32_t heap, leader, kind, call, index, moving, place, rows, rows_room, ends, takes, losses;
    char awake, on_time, late;
    Row *row;
    double *end;
    Take *take;
    Loss *loss;
    Running *next_free;
};

/* columns of a job, in the order of `columns` in compiled.py */
#define COLUMNS(X) \
    X(int32_t, op) X(int32_t, stream) X(int32_t, free) X(int32_t, gives) X(int32_t, event) X(int32_t, wait) X(int32_t, what) \
    X(int32_t, which) X(int32_t, first) X(int32_t, but) X(int32_t, pass_task) X(int32_t, pass_end) X(int32_t, microbatch) \
    X(int32_t, event_meeting) X(int32_t, meeting_size) X(int32_t, meeting_slot) X(int32_t, task_rank) X(int64_t, rank_pass) \
    X(int64_t, pass_event) X(int64_t, pass_wait) X(int64_t, launched) X(int32_t, kind) X(int32_t, link_start) X(int32_t, link) \
    X(int32_t, segment_start) X(int32_t, flow) X(int32_t, load_start) X(int32_t, load_link) X(double, idle) X(double, share) \
    X(double, segment) X(double, flows) X(double, load_weight) X(double, sms) X(double, memory) X(double, compute) \
    X(double, bound) X(uint8_t, taking) X(uint8_t, losing) X(int64_t, sizes)
#define ONE(type, name) +1
#define INPUTS (0 COLUMNS(ONE))
/* arrays of a step: name, entries and value at its begin, by its events e, ranks r, streams s, messages m, launches l, meetings g */
#define STATE(X) \
    X(mate, e, -1) X(previous, e, -1) X(after, e, -1) X(task, e, -1) X(pass_of, e, -1) X(waiter, e, -1) X(next_waiter, e + r, -1) \
    X(message_event, m, -1) X(message_waiter, m, -1) X(launched_events, l, -1) X(count, r * s, 0) X(arrived, g, 0) \
    X(meeting_cause, g, -1) X(meeting_first, g, -1) X(meeting_leader, g, -1) X(current, r, 0) X(waiting, e + r, 0) \
    X(now_event, r, -1) X(entered, r, -1)
#define SIZES(job) \
    int64_t e = (job)->events, r = (job)->ranks, s = (job)->streams, m = (job)->messages, l = (job)->launches, g = (job)->meetings

struct Job {
    Py_buffer in[INPUTS];
    Py_buffer out[8];
    int outs, ins;
#define POINTER(type, name) const type *name;
    COLUMNS(POINTER)
    int32_t ranks, streams, events, meetings, slowing, number;
    int64_t messages, launches, first_event;
    /* the step: columns that are returned … */
    double *start, *end, *asked, *wait_asked, *longer;
    int32_t *cause, *leader, *wait_event;
    /* … and the state */
#define ARRAY(name, entries, value) int32_t *name;
    STATE(ARRAY)
    int64_t *cursor;
    double *meeting_time, *now, begin, over;
    int32_t left, pending, under_way;
    int32_t *ready;
    int64_t ready_count, ready_room;
    RankState *rank;
    Running *step;
    /* ends of half segments of tasks that were awake */
    int32_t *ended, ended_count;
    int64_t *ended_start, ended_size, ended_room, ended_start_room, ended_times_room;
    double *ended_times;
};

typedef struct { double level; int32_t place; } Stop;

typedef struct {
    Link *links;
    Job *jobs;
    int32_t link_count, job_count;
    Running **queue;
    int64_t queue_count, queue_room;
    int64_t number, events, solves, stamp, continued;
    Running **moved, **trial, **woken, *pool;
    Link **changed, **wide;
    double *rates;
    int32_t *stop;
    Stop *stops;
    int64_t moved_count, moved_room, changed_count, changed_room, wide_count, wide_room, trial_count, trial_room, stops_count, stops_room,
        stop_room, rates_room, woken_room;
    int dirty, failed, trial_run; /* trial_run: OVERFULL where a trial must end, QUEUED where steps run with the queue */
    double now;
    Py_buffer capacity;
} Loop;

/* Make room for `need` entries of `size` bytes; growing by half keeps the cost of an entry constant. Return 0 without memory. */
static int grow(void *array, int64_t *room, int64_t need, size_t size)
{
    void **where = array, *found;
    if (need <= *room)
        return 1;
    need += need / 2 + 16;
    found = realloc(*where, (size_t)need * size);
    if (!found)
        return 0;
    *where = found;
    *room = need;
    return 1;
}

/* Add a member to a doubly linked list (`next`, `last`), or remove it. */
#define LINK(head, one) \
    do { (one)->last = NULL; (one)->next = (head); if (head) (head)->last = (one); (head) = (one); } while (0)
#define UNLINK(head, one) \
    do { \
        if ((one)->next) (one)->next->last = (one)->last; \
        if ((one)->last) (one)->last->next = (one)->next; else (head) = (one)->next; \
    } while (0)

#define ROOM(loop, array, room, need) \
    do { if (!grow(&(array), &(room), (need), sizeof *(array))) { (loop)->failed = 1; return; } } while (0)

/* --- the queue: a heap of tasks by time and order ------------------------------------------------------------------------ */

static inline int before(const Running *a, const Running *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void rise(Loop *w, int64_t at, Running *task)
{
    while (at > 0 && before(task, w->queue[(at - 1) / 2])) {
        w->queue[at] = w->queue[(at - 1) / 2];
        w->queue[at]->heap = (int32_t)at;
        at = (at - 1) / 2;
    }
    w->queue[at] = task;
    task->heap = (int32_t)at;
}

static void sink(Loop *w, int64_t at, Running *task)
{
    while (2 * at + 1 < w->queue_count) {
        int64_t child = 2 * at + 1;
        if (child + 1 < w->queue_count && before(w->queue[child + 1], w->queue[child]))
            child++;
        if (!before(w->queue[child], task))
            break;
        w->queue[at] = w->queue[child];
        w->queue[at]->heap = (int32_t)at;
        at = child;
    }
    w->queue[at] = task;
    task->heap = (int32_t)at;
}

static void take_event(Loop *w, Running *task) /* remove a task from the queue */
{
    int64_t at = task->heap;
    Running *last = w->queue[--w->queue_count];
    task->heap = -1;
    if (last == task)
        return;
    if (before(last, task)) /* task still has its old time */
        rise(w, at, last);
    else
        sink(w, at, last);
}

static void wait_until(Loop *w, Running *task, double time, int64_t order)
{
    if (task->heap >= 0)
        take_event(w, task);
    task->time = time;
    task->order = order;
    ROOM(w, w->queue, w->queue_room, w->queue_count + 1);
    w->queue_count++;
    rise(w, w->queue_count - 1, task);
}

static void push(Loop *w, Running *task, double time)
{
    w->number++;
    wait_until(w, task, time, (task->call == OVER ? 0 : LATER) + w->number);
}

/* --- running tasks ------------------------------------------------------------------------------------------------------- */

static Running *running(Loop *w, Job *job, int32_t leader, int32_t kind)
{
    Running *task = w->pool;
    if (task)
        w->pool = task->next_free;
    else if (!(task = calloc(1, sizeof *task))) {
        w->failed = 1;
        return NULL;
    }
    task->job = job;
    task->leader = leader;
    task->kind = kind;
    task->call = BEGIN;
    task->heap = task->moving = -1;
    task->seen = 0;
    task->index = task->ends = task->takes = task->losses = task->place = 0;
    task->awake = task->late = 0;
    task->on_time = 1;
    task->rows = kind < 0 ? 0 : job->link_start[kind + 1] - job->link_start[kind];
    if (task->rows > task->rows_room) {
        free(task->row);
        task->row = malloc((size_t)task->rows * sizeof *task->row);
        task->rows_room = task->row ? task->rows : 0;
        if (!task->row)
            w->failed = 1;
    }
    return task;
}

static void recycle(Loop *w, Running *task)
{
    task->next_free = w->pool;
    w->pool = task;
}

/* --- ranks and streams --------------------------------------------------------------------------------------------------- */

static inline double time_of(const Job *job, int32_t event)
{
    return event < 0 ? job->begin : job->end[event];
}

static void add_ready(Loop *w, Job *job, int32_t one)
{
    ROOM(w, job->ready, job->ready_room, job->ready_count + 1);
    job->ready[job->ready_count++] = one;
}

static void wake_waiters(Loop *w, Job *job, int32_t waiter)
{
    for (; waiter >= 0; waiter = job->next_waiter[waiter])
        add_ready(w, job, waiter < job->events ? waiter : job->events - 1 - waiter);
}

static inline void register_waiter(Job *job, int32_t *head, int32_t waiter)
{
    job->next_waiter[waiter] = *head;
    *head = waiter;
}

static void event_over(Loop *w, Job *job, int32_t leader, double end)
{
    for (int32_t event = leader; event >= 0; event = job->mate[event]) {
        job->end[event] = end;
        job->pending -= job->op[job->task[event]] == LAUNCH;
        wake_waiters(w, job, job->waiter[event]);
        job->waiter[event] = -1;
    }
}

/* Note that a task of a kind uses its links from `time` to `end`. Return 0 if the uses that overlap could overfill a link. */
static int fits(Loop *w, const Job *job, int32_t kind, double time, double end)
{
    for (int32_t i = job->link_start[kind]; i < job->link_start[kind + 1]; i++) {
        Link *link = &w->links[job->link[i]];
        int64_t at = link->uses, least = at - NEAR, one;
        double sum = job->share[i];
        Use *use;
        if (!grow(&link->use, &link->uses_room, at + 1, sizeof *link->use))
            return 0;
        for (use = link->use; at > 0 && at > least && use[at - 1].begin > time; at--) {
            sum += use[at - 1].begin < end ? use[at - 1].share : 0.0;
            use[at] = use[at - 1];
        }
        for (one = at; one > 0 && one > least && use[one - 1].until > time; one--)
            sum += use[one - 1].end > time ? use[one - 1].share : 0.0;
        if (sum > FITS || (one > 0 && one == least))
            return 0;
        use[at] = (Use){time, end, at > 0 && use[at - 1].until > end ? use[at - 1].until : end, job->share[i]};
        link->uses++;
        for (one = at + 1; one < link->uses && use[one].until < end; one++)
            use[one].until = end;
    }
    return 1;
}

static void start(Loop *w, Job *job, int32_t leader, int32_t slot, double time, int32_t cause)
{
    int32_t kind = job->kind[slot];
    int changes = 0;
    Running *task;
    for (int32_t event = leader; event >= 0; event = job->mate[event]) {
        job->start[event] = time;
        job->cause[event] = cause;
        if (job->slowing)
            changes |= job->taking[job->task[event]] || job->losing[job->task[event]];
    }
    if (!changes && job->link_start[kind] == job->link_start[kind + 1]) {
        event_over(w, job, leader, time + job->idle[kind]);
        return;
    }
    if (w->trial_run != QUEUED) {
        if (w->trial_run == TRYING && fits(w, job, kind, time, time + job->idle[kind]))
            event_over(w, job, leader, time + job->idle[kind]);
        else
            w->trial_run = OVERFULL;
        return;
    }
    job->under_way++;
    task = running(w, job, leader, kind);
    if (task)
        wait_until(w, task, time, 2 * LATER + job->first_event + leader);
}

static void arrive(Loop *w, Job *job, int32_t event, double time, int32_t cause)
{
    int32_t meeting = job->meetings ? job->event_meeting[event] : -1;
    if (meeting < 0) {
        start(w, job, event, job->task[event], time, cause);
        return;
    }
    int32_t leader = job->meeting_leader[meeting];
    double latest = job->meeting_time[meeting];
    if (leader < 0)
        job->meeting_leader[meeting] = leader = event;
    else {
        job->mate[event] = job->mate[leader];
        job->mate[leader] = event;
    }
    job->leader[event] = leader;
    if (time > latest || (time == latest && event < job->meeting_first[meeting])) {
        job->meeting_time[meeting] = time;
        job->meeting_cause[meeting] = cause;
        job->meeting_first[meeting] = event;
    }
    if (++job->arrived[meeting] == job->meeting_size[meeting])
        start(w, job, leader, job->meeting_slot[meeting], job->meeting_time[meeting], job->meeting_cause[meeting]);
}

/* Return the last event for which a wait of kind STREAM waits now; -2 if it waits for none. */
static int32_t so_far(const Job *job, int32_t rank, int32_t wait)
{
    int64_t number = (int64_t)rank * job->streams + job->which[wait];
    int32_t count = job->count[number], which;
    if (count <= job->but[wait])
        return -2;
    which = job->first[wait] ? (job->first[wait] < count ? job->first[wait] : count) : count - job->but[wait];
    return job->launched_events[job->launched[number] + which - 1];
}

/* Return 0 if the waiter (as above) must wait for an end that is not known. now[own]: time that it has reached; cause[own]: event
 * that ended then. */
static int waited(Job *job, int32_t waiter, int32_t rank, int64_t p, int32_t task, double *now, int32_t *cause, int32_t own)
{
    int64_t offset = job->pass_wait[p] - job->wait[job->pass_task[p]];
    for (int32_t wait = job->waiting[waiter]; wait < job->wait[task + 1]; wait++) {
        int32_t event;
        double end;
        job->waiting[waiter] = wait;
        if (job->what[wait] == MESSAGE) {
            int32_t message = job->which[wait] + 1 + job->microbatch[p];
            event = job->message_event[message];
            if (event < 0) {
                register_waiter(job, &job->message_waiter[message], waiter);
                return 0;
            }
        } else if (job->what[wait] == STREAM) {
            event = so_far(job, rank, wait);
            if (event == -2)
                continue;
        } else
            event = (int32_t)job->pass_event[p] + job->event[job->pass_task[p] + job->which[wait]];
        end = time_of(job, event);
        if (end < 0.0) {
            register_waiter(job, &job->waiter[event], waiter);
            return 0;
        }
        if (job->stream[task] == 0) {
            job->wait_event[offset + wait] = event;
            job->wait_asked[offset + wait] = now[own];
        }
        if (end > now[own]) {
            now[own] = end;
            cause[own] = event;
        }
    }
    job->waiting[waiter] = job->wait[task + 1];
    return 1;
}

static int ran(Loop *w, Job *job, int32_t rank, int64_t p, int32_t task)
{
    int32_t event = (int32_t)job->pass_event[p] + job->event[task];
    double end;
    if (job->task[event] < 0) {
        job->task[event] = task;
        job->asked[event] = job->now[rank];
        arrive(w, job, event, job->now[rank], job->now_event[rank]);
    }
    end = job->end[event];
    if (end < 0.0) {
        register_waiter(job, &job->waiter[event], job->events + rank);
        return 0;
    }
    job->now[rank] = end;
    job->now_event[rank] = event;
    return 1;
}

static void launch(Loop *w, Job *job, int32_t event)
{
    int32_t task = job->task[event], cause = job->cause[event], wanted[2] = {job->previous[event], job->after[event]};
    double time = job->asked[event];
    for (int i = 0; i < 2; i++)
        if (wanted[i] >= 0) {
            double end = job->end[wanted[i]];
            if (end < 0.0) {
                register_waiter(job, &job->waiter[wanted[i]], event);
                return;
            }
            if (end > time) {
                time = end;
                cause = wanted[i];
            }
        }
    if (job->free[task]) {
        if (!waited(job, event, job->task_rank[task], job->pass_of[event], task, job->asked, job->cause, event))
            return;
        time = job->asked[event];
        cause = job->cause[event];
    }
    arrive(w, job, event, time, cause);
}

static void launched(Loop *w, Job *job, int32_t rank, int64_t p, int32_t task)
{
    int32_t event = (int32_t)job->pass_event[p] + job->event[task], count;
    int64_t number = (int64_t)rank * job->streams + job->stream[task];
    count = job->count[number];
    job->task[event] = task;
    job->asked[event] = job->now[rank];
    job->cause[event] = job->now_event[rank];
    job->pass_of[event] = (int32_t)p;
    job->waiting[event] = job->wait[task];
    if (count && !job->free[task])
        job->previous[event] = job->launched_events[job->launched[number] + count - 1];
    for (int32_t wait = job->wait[task]; wait < job->wait[task + 1]; wait++)
        if (job->what[wait] == STREAM) {
            int32_t found = so_far(job, rank, wait);
            job->after[event] = found == -2 ? -1 : found;
        }
    job->launched_events[job->launched[number] + count] = event;
    job->count[number] = count + 1;
    if (job->gives[task] >= 0) {
        int32_t message = job->gives[task] + 1 + job->microbatch[p];
        job->message_event[message] = event;
        wake_waiters(w, job, job->message_waiter[message]);
        job->message_waiter[message] = -1;
    }
    job->pending++;
    launch(w, job, event);
}

static void host(Job *job, int32_t rank, int64_t p, int32_t task, int32_t op)
{
    int64_t first = (int64_t)rank * job->streams, number = first + job->stream[task];
    int32_t event = job->now_event[rank];
    if (op == BUSY) {
        int32_t count = job->count[first + HOST_STREAM];
        int32_t last = count ? job->launched_events[job->launched[first + HOST_STREAM] + count - 1] : job->entered[rank];
        double time = time_of(job, last);
        event = (int32_t)job->pass_event[p] + job->event[task];
        job->task[event] = task;
        job->asked[event] = job->start[event] = time;
        job->cause[event] = last;
        job->end[event] = time + job->idle[job->kind[task]];
    }
    job->launched_events[job->launched[number] + job->count[number]++] = event;
}

static void advance(Loop *w, Job *job, int32_t rank)
{
    int64_t last = job->rank_pass[rank + 1];
    while (job->cursor[rank] < last) {
        int64_t p = job->cursor[rank];
        int32_t task = job->current[rank], end = job->pass_end[p];
        while (task < end) {
            int32_t op = job->op[task];
            if (op <= JOIN) {
                if (!waited(job, job->events + rank, rank, p, task, job->now, job->now_event, rank) || (op == RUN && !ran(w, job, rank, p, task))) {
                    job->current[rank] = task;
                    return;
                }
            } else if (op == LAUNCH)
                launched(w, job, rank, p, task);
            else
                host(job, rank, p, task, op);
            if (w->failed)
                return;
            job->waiting[job->events + rank] = job->wait[++task];
        }
        job->cursor[rank] = ++p;
        if (p < last) {
            job->current[rank] = job->pass_task[p];
            job->waiting[job->events + rank] = job->wait[job->current[rank]];
            job->entered[rank] = job->now_event[rank];
        }
    }
    job->left--;
}

/* Continue all ready ranks and launched tasks of a job. Return 0 if its step can never end. */
static int go_on(Loop *w, Job *job)
{
    while (job->ready_count && !w->failed && w->trial_run != OVERFULL) {
        int32_t one = job->ready[--job->ready_count];
        if (one < 0)
            advance(w, job, -1 - one);
        else
            launch(w, job, one);
        w->failed |= ++w->continued % CHECK == 0 && PyErr_CheckSignals() < 0;
    }
    if (!job->under_way && !w->failed) {
        double end = job->begin;
        if (job->left || job->pending)
            return 0;
        for (int32_t event = 0; event < job->events; event++)
            if (job->end[event] > end)
                end = job->end[event];
        job->over = end;
        job->step->call = LAST;
        push(w, job->step, end);
    }
    return 1;
}

/* --- tasks whose ends depend on others ----------------------------------------------------------------------------------- */

static inline int32_t segments(const Running *task)
{
    return task->job->segment_start[task->kind + 1] - task->job->segment_start[task->kind];
}

/* Row (compute, launched, overlapped, share, computed, over) of the segment with half segment `index`, as in `LoopJob.segment`. */
static inline const double *segment(const Running *task, int32_t index)
{
    return task->job->segment + 6 * (size_t)(task->job->segment_start[task->kind] + index / 2);
}

/* Row (latency, size, bound, idle) of a flow. */
static inline const double *flow_row(const Running *task, int32_t flow)
{
    return task->job->flows + 4 * (size_t)flow;
}

static inline int32_t flow_of(const Running *task)
{
    return task->job->flow[task->job->segment_start[task->kind] + task->index / 2];
}

/* Seconds of a flow that moves for `moving` seconds and of its overlapping computation: both must end. */
static inline double flow_seconds(const double *s, double moving)
{
    double longer = s[2] + s[3] * moving;
    return s[2] && longer > moving ? longer : moving;
}

/* Time when half segment `index`, begun at `begun`, ends if no other task slows it. */
static double alone(const Running *task, int32_t index, double begun)
{
    const double *s = segment(task, index);
    int32_t flow;
    if (task->on_time)
        return task->started + (index % 2 ? s[5] : s[4]);
    if (index % 2 == 0) {
        double computed = begun + s[0], launch_over = task->started + s[1];
        return computed > launch_over ? computed : launch_over;
    }
    flow = task->job->flow[task->job->segment_start[task->kind] + index / 2];
    return flow >= 0 ? begun + flow_seconds(s, flow_row(task, flow)[3]) : begun;
}

static void add_end(Loop *w, Running *task, double end)
{
    ROOM(w, task->end, task->ends_room, task->ends + 1);
    task->end[task->ends++] = end;
}

/* Advance a sleeping task to the half segment that it has reached at a time, at most the last one: in that it waits for its end
 * anyway, however sums are rounded. */
static void reach(Loop *w, Running *task, double time)
{
    int32_t last = 2 * segments(task) - 1;
    while (task->index < last) {
        double end = alone(task, task->index, task->begun);
        if (end > time)
            return;
        add_end(w, task, end);
        task->index++;
        task->begun = end;
    }
}

/* End a half segment. Return whether the task stays awake for the next one; otherwise it sleeps until its end. */
static int goes_on(Loop *w, Running *task, double now)
{
    int32_t halves = 2 * segments(task);
    double end = now;
    add_end(w, task, now);
    task->index++;
    task->begun = now;
    if (task->index < halves)
        for (int32_t i = 0; i < task->rows; i++)
            if (w->links[task->row[i].link].reserved > FITS)
                return 1;
    for (int32_t i = task->on_time && task->index < halves - 1 ? halves - 1 : task->index; i < halves; i++)
        end = alone(task, i, end);
    task->awake = 0;
    task->call = OVER;
    push(w, task, end);
    return 0;
}

/* Begin to move the bytes of a flow after its latency. Its rate is solved with those of all flows that change at this time. */
static void move(Loop *w, Running *task, double now)
{
    int32_t flow = flow_of(task);
    const Job *job = task->job;
    const double *row = flow_row(task, flow);
    double lands = task->begun + row[3];
    if (task->on_time && !(segment(task, task->index)[2] > 0.0))
        lands = alone(task, task->index, task->begun);
    if (job->load_start[flow] == job->load_start[flow + 1]) {
        task->call = LANDED;
        push(w, task, lands > now ? lands : now);
        return;
    }
    task->moving = flow;
    task->rate = task->tried = 0.0;
    task->lands = lands;
    task->bound = row[2];
    task->left = row[1];
    task->since = task->begun + row[0];
    for (int32_t load = job->load_start[flow]; load < job->load_start[flow + 1]; load++) {
        Row *held = &task->row[job->load_link[load]];
        Link *link = &w->links[held->link];
        ROOM(w, link->crossing, link->room, link->count + 1);
        held->at = link->count;
        link->crossing[link->count++] = (Crossing){task, job->load_weight[load], job->load_link[load]};
    }
    ROOM(w, w->moved, w->moved_room, w->moved_count + 1);
    w->moved[w->moved_count++] = task;
    w->dirty = 1;
}

static void change(Loop *w, Link *link)
{
    ROOM(w, w->changed, w->changed_room, w->changed_count + 1);
    w->changed[w->changed_count++] = link;
}

/* Remove a flow that has ended from its links. */
static void land(Loop *w, Running *task)
{
    const Job *job = task->job;
    for (int32_t load = job->load_start[task->moving]; load < job->load_start[task->moving + 1]; load++) {
        Row *held = &task->row[job->load_link[load]];
        Link *link = &w->links[held->link];
        Crossing last = link->crossing[--link->count];
        link->crossing[held->at] = last;
        last.task->row[last.place].at = held->at;
        if (link->full && !link->changed) {
            link->changed = 1;
            change(w, link);
        }
        /* an idle link begins from zero again: else the rounding of all sums would stay */
        link->used = link->count ? link->used - job->load_weight[load] * task->tried : 0.0;
    }
    task->moving = -1;
    if (task->lands == INFINITY)
        task->on_time = 0;
    w->dirty = 1;
}

/* Continue a task in the half segment of a flow: its latency, its bytes, or the computation that overlaps with it. */
static void transfer(Loop *w, Running *task, double now)
{
    int32_t flow = flow_of(task);
    double begun = task->begun, time;
    const double *row = flow < 0 ? NULL : flow_row(task, flow);
    if (!row || now >= begun + row[3]) {
        task->call = END;
        time = alone(task, task->index, begun);
        push(w, task, time > now ? time : now);
    } else if (!row[1]) {
        task->call = LANDED;
        time = alone(task, task->index, begun);
        if (task->on_time && !(segment(task, task->index)[2] > 0.0))
            push(w, task, time > now ? time : now);
        else
            push(w, task, begun + row[3]);
    } else if (now >= begun + row[0])
        move(w, task, now);
    else {
        task->call = MOVE;
        push(w, task, begun + row[0]);
    }
}

/* Continue a task in its current half segment, which began now or before. */
static void enter(Loop *w, Running *task, double now)
{
    for (;;) {
        double time;
        if (task->index % 2) {
            transfer(w, task, now);
            return;
        }
        time = alone(task, task->index, task->begun);
        if (time > now) {
            task->call = END;
            push(w, task, time);
            return;
        }
        if (!goes_on(w, task, now))
            return;
    }
}

/* Wake a sleeping task: from now on it continues event by event. */
static void wake(Loop *w, Running *task, double now)
{
    if (task->heap >= 0)
        take_event(w, task);
    reach(w, task, now);
    if (task->index) {
        const double *s = segment(task, task->index - 1);
        task->on_time = task->begun == task->started + (task->index % 2 ? s[4] : s[5]);
    }
    enter(w, task, now);
}

/* Process the event, of kind `call`, that an awake task waited for. */
static void wake_up(Loop *w, Running *task, double now)
{
    const double *s = segment(task, task->index);
    w->events++;
    if (task->call == MOVE) {
        move(w, task, now);
        return;
    }
    if (task->call == LAND)
        land(w, task);
    if (task->call != END && s[2] > 0.0) {
        double time = task->on_time ? alone(task, task->index, task->begun) : task->begun + flow_seconds(s, now - task->begun);
        task->call = END;
        push(w, task, time > now ? time : now);
    } else if (goes_on(w, task, now))
        enter(w, task, now);
}

/* --- losses to communication that overlaps ------------------------------------------------------------------------------- */

/* Seconds of lost computation that a rank makes up for in one second (0 to 1). */
static inline double speed(const Job *job, const Loss *loss)
{
    const RankState *rank = &job->rank[loss->rank];
    return 1.0 - loss->other * rank->taken - loss->memory * rank->taken_bound;
}

/* Advance the integrals of a rank to now, and the seconds left of the losses that are being made up for. */
static void advance_rank(Job *job, int32_t number, double now)
{
    RankState *rank = &job->rank[number];
    double past = now - rank->since;
    if (past == 0.0)
        return;
    rank->since = now;
    rank->lost += rank->taken * past;
    rank->lost_bound += rank->taken_bound * past;
    for (Loss *loss = rank->late; loss; loss = loss->next)
        loss->left -= speed(job, loss) * past;
}

/* Schedule the end of a task for the time when its losses are made up for on all of its ranks. */
static void wait_late(Loop *w, Running *task)
{
    double end = task->loss[0].end;
    for (int32_t i = 1; i < task->losses; i++)
        if (task->loss[i].end > end)
            end = task->loss[i].end;
    push(w, task, end);
}

static double made_up(const Job *job, const Loss *loss, double now)
{
    return now + (loss->left > 0.0 ? loss->left : 0.0) / speed(job, loss);
}

/* Add (sign 1) or remove (-1) a task's shares of its ranks; reschedule tasks that make up for losses there. Kernels that memory
 * bounds lose the larger of both shares; of neither can all be taken. */
static void take(Loop *w, Running *task, double sign, double now)
{
    Job *job = task->job;
    for (int32_t i = 0; i < task->takes; i++) {
        RankState *rank = &job->rank[task->take[i].rank];
        double asked;
        advance_rank(job, task->take[i].rank, now);
        rank->sms += sign * task->take[i].sms;
        rank->memory += sign * task->take[i].memory;
        asked = rank->sms > rank->memory ? rank->sms : rank->memory;
        rank->taken = rank->sms > LEAST ? (rank->sms < MOST ? rank->sms : MOST) : 0.0;
        rank->taken_bound = asked > LEAST ? (asked < MOST ? asked : MOST) : 0.0;
        for (Loss *loss = rank->late; loss; loss = loss->next)
            if (loss->end > now) {
                loss->end = made_up(job, loss, now);
                wait_late(w, loss->task);
            }
    }
}

/* Begin a task's use of SMs and memory bandwidth; note the losses so far of the ranks on which it computes. */
static void overlap(Loop *w, Running *task, double now)
{
    Job *job = task->job;
    double idle = job->idle[task->kind];
    for (int32_t event = task->leader; event >= 0; event = job->mate[event]) {
        int32_t number = job->task[event], rank = job->task_rank[number], kind = job->kind[number];
        if (job->taking[number]) {
            ROOM(w, task->take, task->takes_room, task->takes + 1);
            task->take[task->takes++] = (Take){rank, job->sms[kind], job->memory[kind]};
        }
        if (job->losing[number] && idle > 0.0) {
            double part = job->compute[kind] / idle, bound = job->bound[kind] / idle;
            ROOM(w, task->loss, task->losses_room, task->losses + 1);
            part = part < 1.0 ? part : 1.0;
            bound = bound < part ? bound : part;
            task->loss[task->losses++] = (Loss){.task = task, .rank = rank, .other = part - bound, .memory = bound};
        }
    }
    take(w, task, 1.0, now);
    for (int32_t i = 0; i < task->losses; i++) {
        Loss *loss = &task->loss[i];
        advance_rank(job, loss->rank, now);
        loss->before = job->rank[loss->rank].lost;
        loss->before_bound = job->rank[loss->rank].lost_bound;
    }
}

/* Return whether a task, at its end, has lost computation to communication; if so, begin to make up for the loss. Where nothing
 * was lost on a rank, the task still ends with the slowest of its ranks. */
static int loses(Loop *w, Running *task, double now)
{
    Job *job = task->job;
    int late = 0;
    for (int32_t i = 0; i < task->losses; i++) {
        Loss *loss = &task->loss[i];
        RankState *rank = &job->rank[loss->rank];
        advance_rank(job, loss->rank, now);
        loss->left = loss->other * (rank->lost - loss->before) + loss->memory * (rank->lost_bound - loss->before_bound);
        loss->end = now;
        late |= loss->left > 0.0;
    }
    if (!late)
        return 0;
    for (int32_t i = 0; i < task->losses; i++) {
        Loss *loss = &task->loss[i];
        RankState *rank = &job->rank[loss->rank];
        if (loss->left > 0.0)
            loss->end = made_up(job, loss, now);
        LINK(rank->late, loss); /* also where nothing was lost on this rank: the task ends with the slowest of its ranks */
    }
    task->late = 1;
    task->since = now;
    task->call = OVER;
    wait_late(w, task);
    return 1;
}

/* Note by how much a task became longer, now that it has made up for its losses, and remove it from its ranks. */
static void no_longer_late(Running *task, double now)
{
    Job *job = task->job;
    for (int32_t event = task->leader; event >= 0; event = job->mate[event])
        job->longer[event] = now - task->since;
    for (int32_t i = 0; i < task->losses; i++) {
        Loss *loss = &task->loss[i];
        advance_rank(job, loss->rank, now);
        UNLINK(job->rank[loss->rank].late, loss);
    }
}

/* --- begin and end ------------------------------------------------------------------------------------------------------- */

static int by_event(const void *a, const void *b)
{
    const Running *one = *(Running *const *)a, *other = *(Running *const *)b;
    if (one->job != other->job)
        return one->job->number < other->job->number ? -1 : 1;
    return one->leader < other->leader ? -1 : one->leader > other->leader;
}

/* Begin a task: asleep until its end if its links fit, else awake together with the sleeping tasks that it could slow. */
static void begin(Loop *w, Running *task, double now)
{
    Job *job = task->job;
    const double *share = job->share + job->link_start[task->kind];
    const int32_t *number = job->link + job->link_start[task->kind];
    int tight = 0;
    int64_t count = 0;
    task->started = task->begun = now;
    if (job->slowing)
        overlap(w, task, now);
    for (int32_t i = 0; i < task->rows; i++) {
        Row *row = &task->row[i];
        Link *link = &w->links[number[i]];
        *row = (Row){.task = task, .link = number[i], .at = -1};
        LINK(link->held, row);
        link->reserved += share[i];
        tight |= link->reserved > FITS;
    }
    if (!tight) {
        task->call = OVER;
        push(w, task, now + job->idle[task->kind]);
        return;
    }
    for (int32_t i = 0; i < task->rows; i++) {
        Link *link = &w->links[number[i]];
        if (link->reserved > FITS)
            for (Row *row = link->held; row; row = row->next)
                if (!row->task->awake) {
                    row->task->awake = 1;
                    ROOM(w, w->woken, w->woken_room, count + 1);
                    w->woken[count++] = row->task;
                }
    }
    qsort(w->woken, (size_t)count, sizeof *w->woken, by_event);
    for (int64_t i = 0; i < count; i++)
        wake(w, w->woken[i], now);
}

/* Keep the ends of the half segments of a task that was awake. */
static void keep_ends(Loop *w, Running *task)
{
    Job *job = task->job;
    if (!task->ends)
        return;
    ROOM(w, job->ended, job->ended_room, job->ended_count + 2);
    ROOM(w, job->ended_start, job->ended_start_room, job->ended_count + 2);
    ROOM(w, job->ended_times, job->ended_times_room, job->ended_size + task->ends);
    memcpy(job->ended_times + job->ended_size, task->end, (size_t)task->ends * sizeof(double));
    job->ended[job->ended_count] = task->leader;
    job->ended_size += task->ends;
    job->ended_start[++job->ended_count] = job->ended_size;
}

/* End a sleeping task, after it has made up for lost computation, and continue the ranks and tasks that waited for it. */
static int finish(Loop *w, Running *task, double now)
{
    Job *job = task->job;
    if (task->late)
        no_longer_late(task, now);
    else {
        const double *share = job->share + job->link_start[task->kind];
        if (task->index) {
            reach(w, task, INFINITY);
            if (task->ends < 2 * segments(task))
                add_end(w, task, now);
        }
        for (int32_t i = 0; i < task->rows; i++) {
            Row *row = &task->row[i];
            Link *link = &w->links[row->link];
            UNLINK(link->held, row);
            link->reserved = link->held ? link->reserved - share[i] : 0.0;
        }
        take(w, task, -1.0, now);
        if (loses(w, task, now))
            return 1;
    }
    keep_ends(w, task);
    job->under_way--;
    event_over(w, job, task->leader, now);
    recycle(w, task);
    return go_on(w, job);
}

/* --- max-min fair rates -------------------------------------------------------------------------------------------------- */

static void widen(Loop *w, Link *link)
{
    if (link->seen == w->stamp)
        return;
    link->seen = w->stamp;
    ROOM(w, w->wide, w->wide_room, w->wide_count + 1);
    w->wide[w->wide_count++] = link;
}

static void try_task(Loop *w, Running *task)
{
    if (task->seen == w->stamp)
        return;
    task->seen = w->stamp;
    ROOM(w, w->trial, w->trial_room, w->trial_count + 1);
    w->trial[w->trial_count++] = task;
}

#define EACH_LOAD(task, load) \
    for (int32_t load = (task)->job->load_start[(task)->moving]; load < (task)->job->load_start[(task)->moving + 1]; load++)
#define LINK_OF(w, task, load) (&(w)->links[(task)->row[(task)->job->load_link[load]].link])

/* Collect in `trial` the flows connected to changed flows or links by chains of full links, and in `wide` the links of the chains. */
static void connected(Loop *w)
{
    int64_t done = 0, gone = 0;
    w->stamp++;
    w->wide_count = w->trial_count = 0;
    for (int64_t i = 0; i < w->changed_count; i++)
        widen(w, w->changed[i]);
    for (int64_t i = 0; i < w->moved_count; i++)
        try_task(w, w->moved[i]);
    while (!w->failed && (done < w->wide_count || gone < w->trial_count)) {
        for (; done < w->wide_count; done++) {
            Link *link = w->wide[done];
            for (int32_t i = 0; i < link->count; i++)
                try_task(w, link->crossing[i].task);
        }
        if (gone == w->trial_count)
            break;
        EACH_LOAD(w->trial[gone], load) {
            Link *link = LINK_OF(w, w->trial[gone], load);
            if (link->full)
                widen(w, link);
        }
        gone++;
    }
}

static inline int stop_before(Stop a, Stop b)
{
    return a.level < b.level || (a.level == b.level && a.place < b.place);
}

static void sink_stop(Loop *w, int64_t at, Stop stop)
{
    while (2 * at + 1 < w->stops_count) {
        int64_t child = 2 * at + 1;
        if (child + 1 < w->stops_count && stop_before(w->stops[child + 1], w->stops[child]))
            child++;
        if (!stop_before(w->stops[child], stop))
            break;
        w->stops[at] = w->stops[child];
        at = child;
    }
    w->stops[at] = stop;
}

static void add_stop(Loop *w, double level, int32_t place)
{
    int64_t at = w->stops_count;
    Stop stop = {level, place};
    ROOM(w, w->stops, w->stops_room, at + 1);
    w->stops_count++;
    for (; at > 0 && stop_before(stop, w->stops[(at - 1) / 2]); at = (at - 1) / 2)
        w->stops[at] = w->stops[(at - 1) / 2];
    w->stops[at] = stop;
}

/* List in `stop` the flows whose rates stop rising at a level: one flow (negative place), or all that still rise on a link. Return
 * their number. */
static int64_t stopping(Loop *w, Stop stop)
{
    Link *link;
    int64_t count = 0;
    double rising = 0.0;
    if (stop.place < 0) {
        w->stop[0] = -1 - stop.place;
        return w->rates[-1 - stop.place] < 0.0;
    }
    link = w->wide[stop.place];
    if (!link->left)
        return 0;
    if (link->free > stop.level * link->total * (1 + NEARLY)) { /* flows have stopped since the level was computed */
        add_stop(w, link->free / link->total * (1 - NEARLY / 2), stop.place);
        return 0;
    }
    for (int32_t i = 0; i < link->count; i++) {
        int32_t place = link->crossing[i].task->place;
        if (w->rates[place] < 0.0) {
            rising += link->crossing[i].weight;
            w->stop[count++] = place;
        }
    }
    if (link->free / rising > stop.level) {
        add_stop(w, link->free / rising, stop.place);
        return 0;
    }
    return count;
}

/* Find the max-min fair rates of flows on links that no other flows cross. All rates rise together; a flow stops at its bound or
 * when one of its links is full (Bertsekas & Gallager, Data Networks, 6.5.2). */
static void fair(Loop *w)
{
    int64_t rising = w->trial_count;
    ROOM(w, w->rates, w->rates_room, w->trial_count);
    ROOM(w, w->stop, w->stop_room, w->trial_count + 1);
    for (int64_t i = 0; i < w->trial_count; i++) {
        w->rates[i] = w->wide_count ? -1.0 : w->trial[i]->bound;
        w->trial[i]->place = (int32_t)i;
    }
    if (!w->wide_count)
        return;
    ROOM(w, w->stops, w->stops_room, w->trial_count + w->wide_count);
    w->stops_count = 0;
    for (int64_t i = 0; i < w->trial_count; i++)
        w->stops[w->stops_count++] = (Stop){w->trial[i]->bound, (int32_t)(-1 - i)};
    for (int64_t i = 0; i < w->wide_count; i++) {
        Link *link = w->wide[i];
        link->free = link->limit;
        link->left = link->count;
        link->total = 0.0;
        for (int32_t k = 0; k < link->count; k++)
            link->total += link->crossing[k].weight;
        if (link->left)
            w->stops[w->stops_count++] = (Stop){link->free / link->total, (int32_t)i};
    }
    for (int64_t i = w->stops_count / 2 - 1; i >= 0; i--)
        sink_stop(w, i, w->stops[i]);
    while (rising && !w->failed) {
        Stop stop = w->stops[0];
        int64_t count;
        Stop last = w->stops[--w->stops_count];
        if (w->stops_count)
            sink_stop(w, 0, last);
        count = stopping(w, stop);
        rising -= count;
        for (int64_t i = 0; i < count; i++) {
            Running *task = w->trial[w->stop[i]];
            w->rates[w->stop[i]] = stop.level;
            EACH_LOAD(task, load) {
                Link *link = LINK_OF(w, task, load);
                if (link->full) {
                    double weight = task->job->load_weight[load], left = link->free - weight * stop.level;
                    link->free = left > 0.0 ? left : 0.0;
                    link->total -= weight;
                    link->left--;
                }
            }
        }
    }
}

/* Try rates; return whether they overfill links not yet marked full, and mark these as full and changed. */
static int overfilled(Loop *w)
{
    int over = 0, found = 0;
    for (int64_t i = 0; i < w->trial_count; i++) {
        Running *task = w->trial[i];
        double more = w->rates[i] - task->tried;
        w->rates[i] = task->tried; /* the rate before, for the second look */
        task->tried += more;
        if (more) {
            task->tried = more + w->rates[i];
            EACH_LOAD(task, load) {
                Link *link = LINK_OF(w, task, load);
                link->used += task->job->load_weight[load] * more;
                over |= link->used > link->limit * (1 + SAME) && !link->full;
            }
        }
    }
    if (!over)
        return 0;
    for (int64_t i = 0; i < w->trial_count; i++) {
        Running *task = w->trial[i];
        if (task->tried != w->rates[i])
            EACH_LOAD(task, load) {
                Link *link = LINK_OF(w, task, load);
                if (link->used > link->limit * (1 + SAME) && !link->full) {
                    link->full = 1;
                    found = 1;
                    change(w, link);
                }
            }
    }
    return found;
}

/* Give a flow its new rate from now on, unless the change is within rounding: that would move its end by some digits, and cost
 * an event. What nothing has slowed so far has moved at its bound, awake or asleep. */
static void settle(Loop *w, Running *task, double now)
{
    double rate = task->tried, time = task->lands;
    if (fabs(rate - task->rate) <= SAME * task->rate)
        return;
    if (rate < task->bound || time == INFINITY) {
        task->left -= (time == INFINITY ? task->rate : task->bound) * (now - task->since);
        task->since = now;
        task->lands = INFINITY;
        time = now + (task->left > 0.0 ? task->left : 0.0) / rate;
    }
    task->rate = rate;
    task->call = LAND;
    push(w, task, time > now ? time : now);
}

/* Update the rates of flows on the full links that changes reach, and on links that the new rates would overfill: of thousands of
 * links a hundred are full, and a solution that keeps within a limit stays when that limit is added. */
static void solve(Loop *w, double now)
{
    w->solves++;
    do {
        connected(w);
        fair(w);
    } while (!w->failed && overfilled(w));
    w->changed_count = w->moved_count = w->dirty = 0;
    for (int64_t i = 0; i < w->trial_count; i++)
        settle(w, w->trial[i], now);
    for (int64_t i = 0; i < w->wide_count; i++) {
        Link *link = w->wide[i];
        link->changed = 0;
        link->full = link->used > NEARLY_FULL * link->limit;
    }
}

/* --- for Python ---------------------------------------------------------------------------------------------------------- */

static void free_job(Job *job)
{
#define FREE(name, entries, value) free(job->name);
    STATE(FREE)
    void *owned[] = {job->cursor, job->meeting_time, job->now, job->ready, job->rank, job->ended, job->ended_start, job->ended_times};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    for (int i = 0; i < job->ins; i++)
        PyBuffer_Release(&job->in[i]);
    for (int i = 0; i < job->outs; i++)
        PyBuffer_Release(&job->out[i]);
}

static void free_running(Running *task)
{
    free(task->row);
    free(task->end);
    free(task->take);
    free(task->loss);
    free(task);
}

static void free_loop(PyObject *capsule)
{
    Loop *w = PyCapsule_GetPointer(capsule, "clustersim.loop");
    if (!w)
        return;
    for (int64_t i = 0; i < w->queue_count; i++)
        free_running(w->queue[i]); /* an interrupted simulation */
    while (w->pool) {
        Running *task = w->pool;
        w->pool = task->next_free;
        free_running(task);
    }
    for (int32_t i = 0; i < w->link_count; i++)
        free(w->links[i].crossing);
    for (int32_t i = 0; i < w->job_count; i++) {
        if (w->jobs[i].step && w->jobs[i].step->heap < 0)
            free_running(w->jobs[i].step);
        free_job(&w->jobs[i]);
    }
    void *owned[] = {w->links, w->jobs, w->queue, w->moved, w->trial, w->woken, w->changed, w->wide, w->rates, w->stop, w->stops};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(w);
}

/* Read the columns of a job: a tuple of buffers in the order of `columns` in compiled.py. */
static int read_job(Job *job, PyObject *columns)
{
    const void *at[INPUTS];
    if (!PyTuple_Check(columns) || PyTuple_Size(columns) != INPUTS) {
        PyErr_SetString(PyExc_TypeError, "a job is a tuple of columns");
        return 0;
    }
    for (int i = 0; i < INPUTS; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(columns, i), &job->in[i], PyBUF_SIMPLE) < 0)
            return 0;
        job->ins = i + 1;
        at[i] = job->in[i].buf;
    }
    int n = 0;
#define READ(type, name) job->name = at[n++];
    COLUMNS(READ)
    job->ranks = (int32_t)(job->in[17].len / 8 - 1);
    job->events = (int32_t)job->pass_event[job->in[18].len / 8 - 1];
    job->meetings = (int32_t)(job->in[14].len / 4);
    job->streams = (int32_t)job->sizes[0]; /* streams, messages, slowing, first event */
    job->messages = job->sizes[1];
    job->slowing = (int32_t)job->sizes[2];
    job->first_event = job->sizes[3];
    job->launches = job->launched[job->in[20].len / 8 - 1];
    SIZES(job);
    int made = 1;
#define MAKE(name, entries, value) made &= !!(job->name = malloc((size_t)((entries) + 1) * sizeof *job->name));
    STATE(MAKE)
    MAKE(cursor, r, 0)
    MAKE(meeting_time, g, 0)
    MAKE(now, r, 0)
    MAKE(rank, r, 0)
    if (!made)
        PyErr_NoMemory();
    return made;
}

static PyObject *create(PyObject *module, PyObject *args)
{
    PyObject *capacity, *jobs, *capsule;
    Loop *w;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!", &capacity, &PyTuple_Type, &jobs))
        return NULL;
    if (!(w = calloc(1, sizeof *w)))
        return PyErr_NoMemory();
    if (!(capsule = PyCapsule_New(w, "clustersim.loop", free_loop))) {
        free(w);
        return NULL;
    }
    if (PyObject_GetBuffer(capacity, &w->capacity, PyBUF_SIMPLE) < 0) {
        Py_DECREF(capsule);
        return NULL;
    }
    w->link_count = (int32_t)(w->capacity.len / 8);
    w->links = calloc((size_t)w->link_count + 1, sizeof *w->links);
    w->jobs = calloc((size_t)PyTuple_Size(jobs) + 1, sizeof *w->jobs);
    for (int32_t i = 0; w->links && i < w->link_count; i++)
        w->links[i].limit = ((const double *)w->capacity.buf)[i];
    PyBuffer_Release(&w->capacity);
    if (!w->links || !w->jobs) {
        Py_DECREF(capsule);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(jobs); i++) {
        Job *job = &w->jobs[i];
        w->job_count = (int32_t)i + 1;
        job->number = (int32_t)i;
        if (!read_job(job, PyTuple_GetItem(jobs, i)) || !(job->step = running(w, job, -1, -1))) {
            Py_DECREF(capsule);
            return NULL;
        }
    }
    return capsule;
}

static Loop *loop_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, "clustersim.loop");
}

static Job *job_of(PyObject *args, Loop **w) /* read the arguments (loop, number of a job) */
{
    PyObject *capsule;
    int number;
    return PyArg_ParseTuple(args, "Oi", &capsule, &number) && (*w = loop_of(capsule)) ? &(*w)->jobs[number] : NULL;
}

static void fill(int32_t *array, int64_t count, int32_t value)
{
    for (int64_t i = 0; i < count; i++)
        array[i] = value;
}

/* Reset the results and the state of a job's step, which begins at a time. */
static void reset(Loop *w, Job *job, double begin_time)
{
    for (int32_t i = 0; i < job->events; i++) {
        job->start[i] = job->end[i] = -1.0;
        job->leader[i] = i;
    }
    fill(job->cause, job->events, -1);
    fill(job->wait_event, job->out[5].len / 4, -1);
    SIZES(job);
#define RESET(name, entries, value) fill(job->name, entries, value);
    STATE(RESET)
    memset(job->rank, 0, (size_t)r * sizeof *job->rank);
    for (int64_t i = 0; i < g; i++)
        job->meeting_time[i] = -1.0;
    job->ready_count = 0;
    for (int32_t i = 0; i < job->ranks; i++) {
        job->cursor[i] = job->rank_pass[i];
        job->current[i] = job->pass_task[job->rank_pass[i]];
        job->waiting[job->events + i] = job->wait[job->current[i]];
        job->now[i] = begin_time;
        job->rank[i].since = begin_time;
        add_ready(w, job, i - job->ranks);
    }
    job->begin = begin_time;
    job->left = job->ranks;
    job->pending = job->under_way = 0;
    job->ended_count = 0;
    job->ended_size = 0;
}

/* Execute a step up to its first wait for the queue: all of it if a trial without the queue finds that no link could be overfull.
 * Return 0 if the step can never end. */
static int try_step(Loop *w, Job *job)
{
    if (w->job_count > 1 || job->slowing)
        w->trial_run = QUEUED;
    if (w->trial_run == TRYING) {
        int may_end = go_on(w, job);
        for (Link *link = w->links; link < w->links + w->link_count; link++) {
            free(link->use);
            link->use = NULL;
            link->uses = link->uses_room = 0;
        }
        if (w->trial_run == TRYING)
            return may_end;
        w->trial_run = QUEUED;
        reset(w, job, job->begin);
    }
    return go_on(w, job);
}

/* begin_step(loop, job, begin, columns): begin a step of a job at a time; columns: new arrays for its results. */
static PyObject *begin_step(PyObject *module, PyObject *args)
{
    PyObject *capsule, *columns;
    int number;
    double begin_time;
    Loop *w;
    Job *job;
    (void)module;
    if (!PyArg_ParseTuple(args, "OidO!", &capsule, &number, &begin_time, &PyTuple_Type, &columns) || !(w = loop_of(capsule)))
        return NULL;
    job = &w->jobs[number];
    for (int i = 0; i < job->outs; i++)
        PyBuffer_Release(&job->out[i]);
    job->outs = 0;
    for (int i = 0; i < 8; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(columns, i), &job->out[i], PyBUF_WRITABLE) < 0)
            return NULL;
        job->outs = i + 1;
    }
    job->start = job->out[0].buf; job->end = job->out[1].buf; job->asked = job->out[2].buf; job->cause = job->out[3].buf;
    job->leader = job->out[4].buf; job->wait_event = job->out[5].buf; job->wait_asked = job->out[6].buf; job->longer = job->out[7].buf;
    reset(w, job, begin_time);
    job->step->call = FIRST;
    push(w, job->step, begin_time);
    if (w->failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* run_step(loop): process events until a job ends a step. Return its number, or -1 - the number of a job that can never end. */
static PyObject *run_step(PyObject *module, PyObject *capsule)
{
    Loop *w = loop_of(capsule);
    double now; /* rates of the time of the last call may still have to be solved */
    int64_t count = 0;
    (void)module;
    if (!w)
        return NULL;
    now = w->now;
    for (;;) {
        Running *task;
        if (w->failed)
            return PyErr_Occurred() ? NULL : PyErr_NoMemory();
        if (++count % CHECK == 0 && PyErr_CheckSignals() < 0)
            return NULL;
        if (w->dirty && (!w->queue_count || w->queue[0]->time > now)) {
            w->events++;
            solve(w, now);
            continue;
        }
        if (!w->queue_count) {
            PyErr_SetString(PyExc_RuntimeError, "no events are left");
            return NULL;
        }
        task = w->queue[0];
        now = task->time;
        take_event(w, task);
        if (task->call == BEGIN)
            begin(w, task, now);
        else if (task->call == OVER || task->call == FIRST) {
            Job *job = task->job;
            if (!(task->call == OVER ? finish(w, task, now) : try_step(w, job)))
                return PyLong_FromLong(-1 - job->number);
        } else if (task->call == LAST) {
            w->now = now;
            return PyLong_FromLong(task->job->number);
        } else
            wake_up(w, task, now);
    }
}

/* ends_now(loop, time): whether a job ends a step at a time. */
static PyObject *ends_now(PyObject *module, PyObject *args)
{
    PyObject *capsule;
    double now;
    Loop *w;
    int found = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "Od", &capsule, &now) || !(w = loop_of(capsule)))
        return NULL;
    for (int32_t i = 0; i < w->job_count; i++) {
        Running *step = w->jobs[i].step;
        found |= step->call == LAST && step->heap >= 0 && step->time <= now;
    }
    return PyBool_FromLong(found);
}

/* facts(loop, job): begin and end of its step, events and solves of all, and the events, offsets and times of half segments. */
static PyObject *facts(PyObject *module, PyObject *args)
{
    Loop *w;
    Job *job = job_of(args, &w);
    (void)module;
    if (!job)
        return NULL;
    return Py_BuildValue("ddLLy#y#y#", job->begin, job->over, (long long)w->events, (long long)w->solves, (const char *)job->ended,
        (Py_ssize_t)(job->ended_count * 4), (const char *)(job->ended_count ? job->ended_start + 1 : job->ended_start),
        (Py_ssize_t)(job->ended_count * 8), (const char *)job->ended_times, (Py_ssize_t)(job->ended_size * 8));
}

/* stuck(loop, job): the task and microbatch of the first rank, or launched task, that cannot go on. */
static PyObject *stuck(PyObject *module, PyObject *args)
{
    Loop *w;
    Job *job = job_of(args, &w);
    (void)module;
    if (!job)
        return NULL;
    for (int32_t rank = 0; rank < job->ranks; rank++)
        if (job->cursor[rank] < job->rank_pass[rank + 1])
            return Py_BuildValue("ii", job->current[rank], job->microbatch[job->cursor[rank]]);
    for (int32_t event = 0; event < job->events; event++)
        if (job->task[event] >= 0 && job->end[event] < 0.0)
            return Py_BuildValue("ii", job->task[event], job->microbatch[job->pass_of[event]]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"create", create, METH_VARARGS, "Return a loop for jobs that share links."},
    {"begin_step", begin_step, METH_VARARGS, "Begin a step of a job at a time."},
    {"run_step", run_step, METH_O, "Process events until a job ends a step."},
    {"ends_now", ends_now, METH_VARARGS, "Return whether a job ends a step at a time."},
    {"facts", facts, METH_VARARGS, "Return the times, counts and half segments of a step that has ended."},
    {"stuck", stuck, METH_VARARGS, "Return the task and microbatch that cannot go on."},
    {NULL, NULL, 0, NULL},
};

static int describe(PyObject *module)
{
    return PyModule_AddIntConstant(module, "SOURCE", SOURCE); /* check sum: an extension of another source is not used */
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, describe}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_loop", "The event loop in C.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__loop(void)
{
    return PyModuleDef_Init(&definition);
}
