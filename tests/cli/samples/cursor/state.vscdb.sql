CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);
CREATE TABLE cursorDiskKV (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB);
INSERT INTO ItemTable VALUES ('cursorAuth/accessToken', 'a token');
INSERT INTO cursorDiskKV VALUES ('composerData:c1', '{"composerId": "c1", "name": "Ports", "createdAt": 1767348000000, "lastUpdatedAt": 1767348100000, "unifiedMode": "agent", "fullConversationHeadersOnly": [{"bubbleId": "b1", "type": 1}, {"bubbleId": "b2", "type": 2}], "subComposerIds": []}');
INSERT INTO cursorDiskKV VALUES ('composerData:c0', '{"composerId": "c0", "name": "", "createdAt": 1740000000000, "conversation": [{"bubbleId": "o1", "type": 1, "text": "How do we release?"}, {"bubbleId": "o2", "type": 2, "text": "With make release, from the branch main"}]}');
INSERT INTO cursorDiskKV VALUES ('bubbleId:c1:b1', '{"type": 1, "text": "Which port does the staging database use?", "createdAt": "2026-01-02T10:00:01.000Z"}');
INSERT INTO cursorDiskKV VALUES ('bubbleId:c1:b2', '{"type": 2, "text": "The staging database listens on port 5433", "createdAt": "2026-01-02T10:00:09.000Z", "thinking": {"text": "hm"}}');
INSERT INTO cursorDiskKV VALUES ('bubbleId:c1:b9', '{"type": 1, "text": "Which port is it"}');
INSERT INTO cursorDiskKV VALUES ('bubbleId:c10:b1', '{"type": 1, "text": "of another chat"}');
