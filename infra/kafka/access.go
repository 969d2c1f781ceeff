package kafka

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// permission adds the missing ACL to an error of a broker that did not authorize a request. It returns other errors
// unchanged.
func permission(err error, acl string) error {
	if !unauthorized(err) {
		return err
	}
	return fmt.Errorf("%w: the login needs the ACL %s (docs/access.md)", err, acl)
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

// naming adds the missing ACL to the errors that watermill-kafka only logs.
type naming struct {
	watermill.LoggerAdapter
	acl string
}

// Error implements watermill's interface.
func (l naming) Error(msg string, err error, fields watermill.LogFields) {
	l.LoggerAdapter.Error(msg, permission(err, l.acl), fields)
}

// With implements watermill's interface.
func (l naming) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return naming{l.LoggerAdapter.With(fields), l.acl}
}

// topics names the topics of the registry in the permission for them.
func (a *Admin) topics(operation string) string {
	return fmt.Sprintf("%s on the topics %susage.… and %smeterplex.…", operation, a.cfg.TopicPrefix, a.cfg.TopicPrefix)
}
