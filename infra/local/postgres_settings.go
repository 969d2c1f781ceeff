package local

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// baseSettings suit a machine with 2 cores and a few GiB of memory. They do not reduce durability.
func baseSettings() map[string]string {
	return map[string]string{
		"listen_addresses":             "127.0.0.1",
		"unix_socket_directories":      "",
		"max_connections":              "100",
		"shared_buffers":               "256MB",
		"effective_cache_size":         "1GB",
		"work_mem":                     "16MB",
		"maintenance_work_mem":         "128MB",
		"wal_buffers":                  "16MB",
		"min_wal_size":                 "256MB",
		"max_wal_size":                 "2GB",
		"checkpoint_timeout":           "15min",
		"checkpoint_completion_target": "0.9",
		"jit":                          "off",
		"fsync":                        "on",
		"full_page_writes":             "on",
		"synchronous_commit":           "on",
		"timezone":                     "UTC",
		"log_timezone":                 "UTC",
		"log_line_prefix":              "%m [%p] %q%u@%d ",
		"log_checkpoints":              "off",
		// Terse omits DETAIL lines, which quote row values.
		"log_error_verbosity": "terse",
	}
}

// durable returns the settings without which an acknowledged event might be lost.
func durable() []string { return []string{"fsync", "full_page_writes", "synchronous_commit"} }

func checkSettings(settings map[string]string) error {
	for name, value := range settings {
		switch key := strings.ToLower(name); {
		case slices.Contains(durable(), key) && !strings.EqualFold(value, "on"):
			return fmt.Errorf("setting %s=%s is refused: commits must be durable", name, value)
		case key == "port" || key == "data_directory":
			return fmt.Errorf("setting %s cannot be changed", name)
		}
	}
	return nil
}

func settingArgs(extra map[string]string, port int) []string {
	all := baseSettings()
	for name, value := range extra {
		all[strings.ToLower(name)] = value
	}
	all["port"] = strconv.Itoa(port)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}
