package localkafka

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/child"
	"github.com/meterplex/meterplex/infra/local/folder"
)

// oldestJava is the minimum for Kafka 4.
const oldestJava = 17

// java is a Java runtime.
type java struct {
	path string
	// key identifies the runtime: a class archive works only with the runtime that wrote it.
	key string
}

func noJava(found string) error {
	return fmt.Errorf("%w%s: install one (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk) so that java is in "+
		"the PATH or JAVA_HOME names it", ErrNoJava, found)
}

// findJava returns the runtime of JAVA_HOME, else the one in the PATH. The broker's user must be able to run it.
func findJava(ctx context.Context, user account.Account) (java, error) {
	var candidates []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		candidates = append(candidates, filepath.Join(home, "bin", "java"))
	}
	if path, err := exec.LookPath("java"); err == nil {
		candidates = append(candidates, path)
	}
	found := ""
	for _, path := range candidates {
		if !folder.Exists(path) {
			continue
		}
		out, err := child.Run(ctx, user.Credential(), "/", javaEnv(user), path, "-version")
		if err != nil {
			found = fmt.Sprintf(" (user %d cannot run %s)", user.UID, path)
			continue
		}
		if javaMajor(out) >= oldestJava {
			sum := sha256.Sum256([]byte(path + "\n" + out))
			return java{path: path, key: hex.EncodeToString(sum[:6])}, nil
		}
		found = fmt.Sprintf(" (%s is Java %d)", path, javaMajor(out))
	}
	return java{}, noJava(found)
}

// javaEnv makes Java read file names as UTF-8 in any locale. Another user than this process's gets none of its secrets, which
// the environment holds.
func javaEnv(user account.Account) []string {
	all := os.Environ()
	if user.Drop {
		all = slices.DeleteFunc(all, func(setting string) bool {
			name, _, _ := strings.Cut(setting, "=")
			return !slices.Contains([]string{"PATH", "TZ", "LD_LIBRARY_PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"}, name)
		})
	}
	return append(all, "LC_ALL=C.UTF-8")
}

// javaMajor parses `openjdk version "17.0.15" 2025-04-15`; the runtime may print other lines before it.
// It returns 1 for Java 8 and older.
func javaMajor(output string) int {
	_, after, _ := strings.Cut(output, ` version "`)
	var major int
	if _, err := fmt.Sscanf(after, "%d", &major); err != nil {
		return 0
	}
	return major
}
