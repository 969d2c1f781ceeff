package series

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// erasedGroups bounds the groups that one call of erase changes.
const erasedGroups = 200

// PersonalData gives the groups pseudonyms in place of their values.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionSeries, Consumer: events.GroupSeries, Erase: erase}
}

const (
	groupsToErase = `SELECT DISTINCT feature, group_values FROM usage_series
WHERE tenant_id = $1 AND group_values <> '{}' AND (feature, group_values) > ($2, $3) ORDER BY feature, group_values LIMIT $4`

	eraseGroups = `UPDATE usage_series s SET group_values = n.erased
FROM unnest($2::text[], $3::text[], $4::text[]) AS n (feature, was, erased)
WHERE s.tenant_id = $1 AND s.feature = n.feature AND s.group_values = n.was AND n.was <> n.erased`

	valuesToErase = `SELECT DISTINCT feature, key, value FROM usage_series_values WHERE tenant_id = $1`

	eraseValues = `UPDATE usage_series_values v SET value = n.erased
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS n (feature, key, was, erased)
WHERE v.tenant_id = $1 AND v.feature = n.feature AND v.key = n.key AND v.value = n.was AND n.was <> n.erased`
)

// erase erases the next groups; the values of keys, at most 1,000 for each, with the last ones. A place is a feature and a group.
func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, eraser *domain.Eraser, after string) (next string, err error) {
	feature, group, _ := strings.Cut(after, "\n")
	rows, err := tx.Query(ctx, groupsToErase, tenant, feature, group, erasedGroups)
	if err != nil {
		return "", fmt.Errorf("read groups: %w", err)
	}
	var features, was, erased []string
	_, err = pgx.ForEachRow(rows, []any{&feature, &group}, func() error {
		values := map[string]*string{}
		if err := json.Unmarshal([]byte(group), &values); err != nil {
			return err
		}
		for key, value := range values {
			if value != nil {
				name := eraser.Pseudonym(key, *value)
				values[key] = &name
			}
		}
		features, was, erased = append(features, feature), append(was, group), append(erased, encodeGroup(values))
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read groups: %w", err)
	}
	if _, err := tx.Exec(ctx, eraseGroups, tenant, features, was, erased); err != nil {
		return "", fmt.Errorf("erase groups: %w", err)
	}
	if len(was) == erasedGroups {
		return feature + "\n" + group, nil
	}
	return "", eraseKnownValues(ctx, tx, tenant, eraser)
}

func eraseKnownValues(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, eraser *domain.Eraser) error {
	rows, err := tx.Query(ctx, valuesToErase, tenant)
	if err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	var feature, key, value string
	var features, keys, was, erased []string
	_, err = pgx.ForEachRow(rows, []any{&feature, &key, &value}, func() error {
		features, keys, was, erased = append(features, feature), append(keys, key), append(was, value), append(erased, eraser.Pseudonym(key, value))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read values: %w", err)
	}
	if _, err := tx.Exec(ctx, eraseValues, tenant, features, keys, was, erased); err != nil {
		return fmt.Errorf("erase values: %w", err)
	}
	return nil
}
