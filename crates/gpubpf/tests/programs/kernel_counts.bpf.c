// A program of the host's kernel: counts its runs under the first key. Tests of other crates use it too.
#ifndef ENTRIES
#define ENTRIES 2
#endif
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) __typeof__(value) *name
static void *(*lookup)(void *map, const void *key) = (void *)1;

struct {
	__uint(type, 2); /* BPF_MAP_TYPE_ARRAY */
	__uint(map_flags, 1024); /* BPF_F_MMAPABLE */
	__uint(max_entries, ENTRIES);
	__type(key, unsigned);
	__type(value, unsigned long long);
} counts SEC(".maps");

SEC("syscall") int count(void *ctx)
{
	unsigned key = 0;
	unsigned long long *n = lookup(&counts, &key);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

char of_the_program[] SEC("license") = "GPL";
