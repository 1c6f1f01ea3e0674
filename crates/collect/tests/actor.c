// SPDX-License-Identifier: Apache-2.0
/* The processes that root_threads.rs records: each does one thing until it is killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void work(long long ns)
{
	long long end = now() + ns;

	while (now() < end)
		;
}

static void nap(long ns)
{
	struct timespec t = { 0, ns };

	nanosleep(&t, NULL);
}

static void name(const char *thread)
{
	prctl(PR_SET_NAME, thread);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	/* Other processes of this machine shall not disturb the test. */
	setpriority(PRIO_PROCESS, 0, -15);
}

/* A lock of a whole file, or of one of its bytes; -1 if somebody else has it. */
static int lock_file(int file, const char *how, int byte)
{
	struct flock range = { .l_type = F_WRLCK, .l_start = byte, .l_len = 1 };

	return strcmp(how, "flock") ? fcntl(file, F_SETLK, &range) : flock(file, LOCK_EX | LOCK_NB);
}

/* Waits for nothing that ever comes, and lets others run meanwhile. */
static void *yielder(void *called)
{
	name(called);
	for (;;)
		sched_yield();
	return NULL;
}

/* Two threads that take turns: each works, then wakes the other. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
static int turn;

static void take_turn(int mine)
{
	pthread_mutex_lock(&lock);
	while (turn != mine)
		pthread_cond_wait(&turn_changed, &lock);
	pthread_mutex_unlock(&lock);
	work(200000);
	pthread_mutex_lock(&lock);
	turn = !mine;
	pthread_cond_signal(&turn_changed);
	pthread_mutex_unlock(&lock);
}

static void *answerer(void *unused)
{
	(void)unused;
	name("answerer");
	for (;;)
		take_turn(1);
	return NULL;
}

/* Reads a byte, works, writes a byte: a link of a chain. */
static void relay(int in, int out)
{
	char c;

	while (read(in, &c, 1) == 1) {
		work(300000);
		if (write(out, &c, 1) != 1)
			break;
	}
	_exit(0);
}

__attribute__((noinline)) int serve(int depth)
{
	volatile int below = 0;

	if (depth)
		below = serve(depth - 1);
	else
		nap(2000000);
	return below + 1;
}

static jmp_buf out;

__attribute__((noinline)) void leap(int jump)
{
	nap(100000);
	if (jump)
		longjmp(out, 1);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 0;

	prctl(PR_SET_PDEATHSIG, 9);
	if (!strcmp(role, "spin")) {
		name("spinner");
		pin(n);
		for (;;)
			work(1000000);
	} else if (!strcmp(role, "yield")) {
		pthread_t thread;

		pin(n);
		pthread_create(&thread, NULL, yielder, "yields too");
		yielder("yielder");
	} else if (!strcmp(role, "pace")) {
		name("pacer");
		pin(n);
		for (;;) {
			work(2000000);
			nap(3000000);
		}
	} else if (!strcmp(role, "nap")) {
		name("napper");
		for (;;)
			nap(5000000);
	} else if (!strcmp(role, "sleep")) {
		name("sleeper");
		pause();
	} else if (!strcmp(role, "pingpong")) {
		pthread_t thread;

		name("asker");
		pthread_create(&thread, NULL, answerer, NULL);
		for (;;)
			take_turn(0);
	} else if (!strcmp(role, "chain")) {
		/* first -> second -> third and back to first; pids in this order on stdout. */
		int a[2], b[2], c[2];
		int second, third;
		char byte = 0;

		if (pipe(a) || pipe(b) || pipe(c))
			return 1;
		second = fork();
		if (!second) {
			prctl(PR_SET_PDEATHSIG, 9);
			name("second");
			relay(a[0], b[1]);
		}
		third = fork();
		if (!third) {
			prctl(PR_SET_PDEATHSIG, 9);
			name("third");
			relay(b[0], c[1]);
		}
		/* The recorded process is a child too, so that the others are not its children. */
		if (fork()) {
			wait(NULL);
			return 0;
		}
		prctl(PR_SET_PDEATHSIG, 9);
		name("first");
		printf("%d\n", getpid());
		fflush(stdout);
		for (;;) {
			if (write(a[1], &byte, 1) != 1 || read(c[0], &byte, 1) != 1)
				return 1;
			nap(1000000);
		}
	} else if (!strcmp(role, "storm")) {
		int a[2], b[2];
		char byte = 0;

		if (pipe(a) || pipe(b))
			return 1;
		name("storm");
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, 9);
			while (read(a[0], &byte, 1) == 1 && write(b[1], &byte, 1) == 1)
				;
			_exit(0);
		}
		while (write(a[1], &byte, 1) == 1 && read(b[0], &byte, 1) == 1)
			;
	} else if (!strcmp(role, "hold")) {
		int file = open(argv[2], O_RDWR | O_CREAT, 0600);

		name("holder");
		/* Whoever holds a byte that nobody wants is in nobody's way. */
		if (lock_file(file, argv[3], 7) || (strcmp(argv[3], "flock") && lock_file(file, argv[3], 5)))
			return 1;
		printf("held\n");
		fflush(stdout);
		pause();
	} else if (!strcmp(role, "try")) {
		int file = open(argv[2], O_RDWR | O_CREAT, 0600);

		name("trier");
		for (;;) {
			/* Byte 3 is free. */
			if (strcmp(argv[3], "flock") && lock_file(file, argv[3], 3))
				return 1;
			if (!lock_file(file, argv[3], 7))
				return 1;
			nap(5000000);
		}
	} else if (!strcmp(role, "fork")) {
		name("parent");
		nap(300000000);
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, 9);
			execl(argv[0], argv[0], "nap", NULL);
			_exit(1);
		}
		pause();
	} else if (!strcmp(role, "flood")) {
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(47611) };
		int in = socket(AF_INET, SOCK_DGRAM, 0), s = socket(AF_INET, SOCK_DGRAM, 0);
		char packet[1400] = { 0 };

		name("flooder");
		pin(n);
		to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		bind(in, (struct sockaddr *)&to, sizeof(to));
		for (;;)
			sendto(s, packet, sizeof(packet), 0, (struct sockaddr *)&to, sizeof(to));
	} else if (!strcmp(role, "serve")) {
		int calls = 0;

		name("server");
		/* Waits for a byte, so that the recorder is attached before the first call. */
		getchar();
		for (; calls < n; calls++) {
			serve(3);
			if (!setjmp(out))
				leap(calls % 10 == 0);
		}
		printf("%d\n", calls);
		fflush(stdout);
		pause();
	}
	return 0;
}
