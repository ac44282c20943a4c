CREATE TABLE history ( id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT, new_memory TEXT, event TEXT, created_at DATETIME, updated_at DATETIME, is_deleted INTEGER, actor_id TEXT, role TEXT );
INSERT INTO "history" VALUES ('fe881ec2-81b0-4193-bb3f-8243a20e258e', 'a1', NULL, 'Ann maintains the shop', 'ADD', '2026-02-03T10:00:00+00:00', NULL, 0, 'ann', 'user');
INSERT INTO "history" VALUES ('37bab65d-d533-4e0d-86af-3bacbf8393cb', 'a1', 'Ann maintains the shop', 'Ann maintains the shop with Ben', 'UPDATE', '2026-02-03T10:00:00+00:00', '2026-03-01T08:00:00+00:00', 0, NULL, NULL);
INSERT INTO "history" VALUES ('59464a98-c36d-4eec-9ccc-a1a3e5d5f172', 'a2', NULL, 'Likes pizza', 'ADD', '2026-02-04T10:00:00+00:00', NULL, 0, NULL, NULL);
INSERT INTO "history" VALUES ('03be7140-627c-408c-b974-75e0ef0d7ea4', 'a2', 'Likes pizza', NULL, 'DELETE', '2026-02-04T10:00:00+00:00', NULL, 1, NULL, NULL);
INSERT INTO "history" VALUES ('cf65c41a-d651-4359-9816-018a9450b849', 'a3', NULL, 'Die Kasse rundet auf fünf Rappen', 'ADD', '2026-02-05T10:00:00+00:00', NULL, 0, NULL, NULL);
CREATE TABLE messages ( id TEXT PRIMARY KEY, session_scope TEXT, role TEXT, content TEXT, name TEXT, created_at DATETIME );
INSERT INTO "messages" VALUES ('8d56b7b6-4d96-4396-a367-a2e84c39ba6d', 'user_id=ann', 'user', 'Who maintains the shop?', NULL, '2026-11-24T16:35:20.376658+00:00');
INSERT INTO "messages" VALUES ('75c5e44b-efa9-4398-b1b1-375917cf8cb1', 'user_id=ann', 'assistant', 'Ann and Ben do.', NULL, '2026-11-24T16:35:20.376658+00:00');
