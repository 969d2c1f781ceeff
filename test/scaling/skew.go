package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// world is the distribution of tenants over cells and partitions, as shares of all events.
type world struct {
	cells      []float64
	partitions [][partitions]float64
}

// population returns the tenants' shares of the events by Zipf's law, largest first.
func (t tenants) population() []float64 {
	sizes := make([]float64, t.Count)
	sum := 0.0
	for i := range sizes {
		sizes[i] = math.Pow(float64(i+1), -t.Zipf)
		sum += sizes[i]
	}
	for i := range sizes {
		sizes[i] /= sum
	}
	return sizes
}

// place distributes tenants: over cells by a directory that assigns the emptiest cell,
// or by hash; over the partitions of a cell by hash, as the service does.
func place(sizes []float64, cells, sample int, directory bool) *world {
	w := &world{make([]float64, cells), make([][partitions]float64, cells)}
	for i, size := range sizes {
		sum := sha256.Sum256(fmt.Appendf(nil, "tenant %d of %d", i, sample))
		c := int(binary.BigEndian.Uint64(sum[8:]) % uint64(cells))
		if directory {
			c = least(w.cells)
		}
		w.cells[c] += size
		w.partitions[c][sum[0]%partitions] += size
	}
	return w
}

func least(of []float64) int {
	at := 0
	for i, v := range of {
		if v < of[at] {
			at = i
		}
	}
	return at
}

// hottest returns the fullest cell, its load divided by the mean, and its partitions'
// shares of it.
func (w *world) hottest() (cell int, over float64, weights []float64) {
	for i, v := range w.cells {
		if v > w.cells[cell] {
			cell = i
		}
	}
	for _, p := range w.partitions[cell] {
		weights = append(weights, p/w.cells[cell])
	}
	return cell, w.cells[cell] * float64(len(w.cells)), weights
}

// hottestPartition is the largest share of all events in one partition.
func (w *world) hottestPartition() (most float64) {
	for _, c := range w.partitions {
		most = max(most, slices.MaxFunc(c[:], func(a, b float64) int { return cmp.Compare(a, b) }))
	}
	return most
}

// skew is the mean and the maximum over the samples.
type skew struct{ cell, worstCell, partition, worstPartition float64 }

func (in *inputs) skew(cells int, directory bool) (s skew) {
	t := in.plan.Tenants
	sizes := t.population()
	for i := range t.Samples {
		w := place(sizes, cells, i, directory)
		_, over, _ := w.hottest()
		p := w.hottestPartition() * float64(cells*partitions)
		s.cell += over / float64(t.Samples)
		s.partition += p / float64(t.Samples)
		s.worstCell, s.worstPartition = max(s.worstCell, over), max(s.worstPartition, p)
	}
	return s
}
