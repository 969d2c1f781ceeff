package kafka

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// permission adds the missing ACL to an error of a broker that did not authorize a request, and the settings to the error of a
// refused connection. It returns other errors unchanged.
func permission(err error, acl string) error {
	if !unauthorized(err) {
		return explained(err)
	}
	return fmt.Errorf("%w: the login needs the ACL %s (docs/how-to/kafka-access.md)", err, acl)
}

func unauthorized(err error) bool {
	if denied := (*kadm.AuthError)(nil); errors.As(err, &denied) {
		return true
	}
	for _, of := range []error{kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		sarama.ErrTopicAuthorizationFailed, sarama.ErrGroupAuthorizationFailed, sarama.ErrClusterAuthorizationFailed} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// naming adds the missing ACL to the errors that watermill-kafka only logs. Each attempt logs an error for each partition; naming passes
// the first one on, until the error has not occurred for a while.
type naming struct {
	watermill.LoggerAdapter
	acl  string
	last *repeats
}

// Error implements watermill's interface.
func (l naming) Error(msg string, err error, fields watermill.LogFields) {
	if l.last.again(l.cause(msg, err), time.Now()) {
		l.LoggerAdapter.Debug(msg+": "+fmt.Sprint(err), fields)
		return
	}
	l.LoggerAdapter.Error(msg, permission(err, l.acl), fields)
}

// With implements watermill's interface.
func (l naming) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return naming{l.LoggerAdapter.With(fields), l.acl, l.last}
}

// cause is the same for errors that the same change ends.
func (l naming) cause(msg string, err error) string {
	if unauthorized(err) {
		return l.acl
	}
	if r := refusalOf(err); r.reason != "" {
		return r.reason
	}
	if disconnected(err) {
		return "no connection"
	}
	return strings.Map(func(r rune) rune { // of any partition
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, msg+fmt.Sprint(err))
}

// disconnected reports whether err is one of the errors that the low-rate client returns while it has no connection to a broker. Which
// one depends on the request that failed first.
func disconnected(err error) bool {
	for _, of := range []error{sarama.ErrOutOfBrokers, sarama.ErrNotConnected, sarama.ErrBrokerNotFound, sarama.ErrControllerNotAvailable,
		sarama.ErrBrokerNotAvailable, sarama.ErrConsumerCoordinatorNotAvailable, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, of) {
			return true
		}
	}
	return errors.As(err, new(net.Error))
}

// quiet is longer than the pauses between attempts.
const quiet = 15 * time.Second

// repeats recognizes errors that occur again and again.
type repeats struct {
	mu   sync.Mutex
	seen map[string]time.Time // cause → last occurrence
}

func (r *repeats) again(cause string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(_ string, at time.Time) bool { return now.Sub(at) > quiet })
	_, again := r.seen[cause]
	r.seen[cause] = now
	return again
}

// topics names the topics of the registry in the permission for them.
func (a *Admin) topics(operation string) string {
	return fmt.Sprintf("%s on the topics %susage.… and %smeterplex.…", operation, a.cfg.TopicPrefix, a.cfg.TopicPrefix)
}
