package repair

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// The dead letters of the largest bulk are stored in less than 256 KiB.
func TestTheLargestBulkIsStoredInLittleSpace(t *testing.T) {
	var refs []domain.DeadLetterRef
	for n := range MaxBulk {
		refs = append(refs, domain.DeadLetterRef{ID: uuid.New(), TenantID: uuid.UUID{byte(n % 100)}})
	}
	stored, err := json.Marshal(begunBulk{Selected: selected(refs)})
	if err != nil || len(stored) > 256<<10 {
		t.Errorf("%d bytes, %v", len(stored), err)
	}
	var read begunBulk
	err = json.Unmarshal(stored, &read)
	byID := func(x, y domain.DeadLetterRef) int { return bytes.Compare(x.ID[:], y.ID[:]) }
	got := refsOf(read.Selected)
	slices.SortFunc(refs, byID)
	slices.SortFunc(got, byID)
	if err != nil || !slices.Equal(got, refs) {
		t.Errorf("%d dead letters are read, %v", len(got), err)
	}
}

// Stored dead letters that are cut off are refused.
func TestStoredDeadLettersOfABulkAreRead(t *testing.T) {
	first, second := uuid.MustParse("01900000-0000-7000-8000-0000000000c1"), uuid.MustParse("01900000-0000-7000-8000-0000000000c2")
	for stored, want := range map[string]letterIDs{
		`["` + first.String() + `"]`:                     nil,
		`"AZAAAAAAcACAAAAAAAAAwQGQAAAAAHAAgAAAAAAAAMI="`: {first, second},
		`""`:       nil,
		`"AZAAAA"`: nil,
		`7`:        nil,
	} {
		var got letterIDs
		err := json.Unmarshal([]byte(stored), &got)
		if wrong := want == nil && stored != `""`; (err != nil) != wrong || !slices.Equal(got, want) {
			t.Errorf("%s is read as %v, %v", stored, got, err)
		}
	}
}

func TestBulksAreBounded(t *testing.T) {
	wanted := &BulkRequest{}
	if refusal := wanted.refuses(make([]domain.DeadLetterRef, MaxBulk)); refusal != nil {
		t.Errorf("the largest bulk: %v", refusal)
	}
	if refusal := wanted.refuses(make([]domain.DeadLetterRef, MaxBulk+1)); refusal == nil || refusal.Code != "bulk_too_large" {
		t.Errorf("a larger bulk: %v", refusal)
	}
}
