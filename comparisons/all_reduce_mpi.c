/* An all-reduce of floats with MPI, timed as `cargo bench -p openfleet-dist --bench all_reduce` times ours. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int count = atoi(argv[1]), rounds = atoi(argv[2]), rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *values = malloc(count * sizeof *values);
    double best = 1e9;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) values[i] = rank + i % 7;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int repeat = 0; repeat < 10; repeat++)
            MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double seconds = (MPI_Wtime() - start) / 10;
        if (seconds < best) best = seconds;
    }
    if (rank == 0) printf("%.1f\n", best * 1e6);
    free(values);
    MPI_Finalize();
    return argc < 0;
}
